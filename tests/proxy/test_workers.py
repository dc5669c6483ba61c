"""Several processes on the same ports: clients go on where one is killed, and a file is taken up by all or by none."""

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from strandline.stack.kafka import KafkaCluster
from tests.proxy.raw import asked
from tests.proxy.relay import Relay
from tests.proxy.support import (
    Proxied,
    Writer,
    configured,
    create,
    lies_there,
    proxied,
    received,
    running,
    take,
)
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
TWO = {"workers": 2}
IMPATIENT = {"timeouts": {"connect_s": 1, "health_s": 2}}
METADATA = struct.pack(">ihhihi", 14, 3, 1, 11, -1, -1)
INIT_PRODUCER_ID = struct.pack(">ihhihhi", 16, 22, 0, 12, -1, -1, 60_000)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@contextmanager
def at_every_worker(proxy: Proxied) -> Iterator[list[socket.socket]]:
    """Connections to the port where clients begin, so many that every worker has some of them, and all are taken.

    A worker has more files open also when it has just connected to a broker, so there are several in any case.
    """
    host, port = proxy.address.split(":")
    before = {pid: descriptors(pid) for pid in proxy.workers()}
    opened: list[socket.socket] = []

    def all_have_some() -> bool:
        if len(opened) < 100:
            opened.append(socket.create_connection((host, int(port)), timeout=TIMEOUT))
        return len(opened) >= 12 and all(descriptors(pid) > count for pid, count in before.items())

    try:
        others = proxy.figure("connections")
        wait_for(all_have_some, "every worker has connections")
        wait_for(lambda: proxy.figure("connections") >= others + len(opened), "all connections are taken")
        yield opened
    finally:
        for connection in opened:
            connection.close()


def answer(connection: socket.socket, request: bytes) -> bytes:
    connection.sendall(request)
    (size,) = struct.unpack(">i", received(connection, 4))
    return received(connection, size)


def producer_id(connection: socket.socket) -> int | None:
    """A new one; None from a broker that has to get some first and wants to be asked again."""
    error, found = struct.unpack_from(">hq", answer(connection, INIT_PRODUCER_ID), 8)
    assert error in {0, ErrorCode.coordinator_load_in_progress}
    return None if error else int(found)


def count_asked(proxy: Proxied) -> float:
    """Requests for producer ids, of all workers."""
    return sum(count for (_, api, _), count in proxy.requests().items() if api == "init_producer_id")


def broker_count(connection: socket.socket) -> int:
    found: int = struct.unpack_from(">i", answer(connection, METADATA), 4)[0]
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_that_are_killed_lose_nothing_and_nothing_is_there_twice(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    with proxied(tmp_path, sections=TWO, east=east.address, west=west.address) as proxy:
        create(proxy.settings(), {"worked": 2, "eu.worked": 2, "worked.too": 2})
        reader = Consumer(proxy.settings(group_id="worked", auto_offset_reset="earliest"))
        reader.subscribe(["worked", "eu.worked"])
        writers = [Writer(proxy, topic) for topic in ("worked", "eu.worked", "worked.too")]

        def all_write_on() -> bool:
            return all(writer.acknowledged.total() > count + 50 for writer, count in zip(writers, before, strict=True))

        with writers[0], writers[1], writers[2]:
            # Each in turn, so that every connection is lost once.
            for pid in proxy.workers():
                before = [writer.acknowledged.total() for writer in writers]
                wait_for(all_write_on, "the writers are at work")
                os.kill(pid, signal.SIGKILL)
                wait_for(
                    lambda gone=pid: gone not in proxy.workers() and proxy.figure("workers") == 2,  # type: ignore[misc]
                    "another serves in its place",
                )
                before = [writer.acknowledged.total() for writer in writers]
                wait_for(all_write_on, "the writers go on")
        assert all(set(writer.acknowledged.values()) == {1} for writer in writers)
        assert lies_there(east, "worked", writers[0].acknowledged)
        assert lies_there(west, "eu.worked", writers[1].acknowledged)
        assert lies_there(east, "worked.too", writers[2].acknowledged)
        written = set(writers[0].acknowledged) | set(writers[1].acknowledged)
        read: set[str] = set()
        while not written <= read:
            read |= {(message.value() or b"").decode() for message in take(reader, 1)}
        reader.close()
        assert proxy.log.read_text().count("another is started in") == 2


def test_a_file_is_taken_up_by_all_workers_or_by_none(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    file = configured(tmp_path, {"east": east.address}, **TWO)
    with running(file) as proxy, at_every_worker(proxy) as connections:
        assert [broker_count(connection) for connection in connections] == [1] * len(connections)
        content = json.loads(file.read_text())
        changes: list[dict[str, object]] = [{"clusters": {}}, {"filters": ["no_such:Filter"]}, {"workers": 3}]
        for wrong in changes:
            told = proxy.log.read_text().count("not reloaded, all stays as it was")
            file.write_text(json.dumps({**content, **wrong}))
            proxy.process.send_signal(signal.SIGHUP)
            wait_for(
                lambda told=told: proxy.log.read_text().count("not reloaded, all") > told,  # type: ignore[misc]
                "the reason is told",
            )
        assert [broker_count(connection) for connection in connections] == [1] * len(connections)

        content["clusters"]["west"] = {"bootstrap": west.address}
        file.write_text(json.dumps(content))
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded; serving east, west as one" in proxy.log.read_text(), "the file is read again")
        assert [broker_count(connection) for connection in connections] == [2] * len(connections)
        # Who comes in the place of one that died begins with what all serve by.
        killed = proxy.workers()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not set(killed) & set(proxy.workers()) and proxy.figure("workers") == 2, "others serve")
        with at_every_worker(proxy) as others:
            assert [broker_count(connection) for connection in others] == [2] * len(others)
            tries: list[int | None] = []

            def has_id(connection: socket.socket) -> bool:
                tries.append(producer_id(connection))
                return tries[-1] is not None

            for connection in others * 3:
                wait_for(partial(has_id, connection), "the broker has ids")
            ids = [found for found in tries if found is not None]
            assert len(set(ids)) == len(ids) == len(others) * 3
            assert min(ids) >= 1 << 62
            wait_for(lambda: proxy.figure("connections") == len(others), "the connections of all are counted")
            wait_for(lambda: count_asked(proxy) == len(tries), "the requests of all are counted")


def test_a_worker_that_begins_while_a_cluster_is_down_has_its_topics_without_leaders(
    clusters: Clusters, tmp_path: Path
) -> None:
    east, west = clusters
    create(west.settings(), {"eu.known": 1})
    with Relay(west.address) as relay:
        given = {"bootstrap": relay.address, **IMPATIENT}
        with proxied(tmp_path, sections=TWO, east=east.address, west=given) as proxy, relay.cut():
            killed = proxy.workers()
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not set(killed) & set(proxy.workers()) and proxy.figure("workers") == 2, "others serve")
            for _ in range(4):
                listed = AdminClient(proxy.settings()).list_topics(timeout=TIMEOUT).topics
                assert listed["eu.known"].partitions[0].leader == -1


def test_all_workers_answer_what_was_asked_and_end_with_the_proxy_however_it_ends(
    clusters: Clusters, tmp_path: Path
) -> None:
    east, west = clusters
    file = configured(tmp_path, {"east": east.address, "west": west.address}, **TWO)
    for how, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)):
        with running(file) as proxy, at_every_worker(proxy) as connections:
            workers = proxy.workers()
            for connection in connections:
                connection.sendall(METADATA)
            # What a worker has not read when it is told to end has not been asked.
            wait_for(lambda: asked(proxy, "metadata") >= len(connections), "all requests have come")
            for connection in connections:
                size, correlation = struct.unpack(">ii", received(connection, 8))
                assert correlation == 11
                if how == signal.SIGTERM and connection is connections[0]:
                    proxy.process.send_signal(how)
                assert len(received(connection, size - 4)) == size - 4
            if how == signal.SIGKILL:
                proxy.process.send_signal(how)
            for connection in connections:
                assert connection.recv(1) == b""
            assert proxy.process.wait(TIMEOUT) == code
            wait_for(lambda pids=workers: not any(map(runs, pids)), "no worker runs")  # type: ignore[misc]
