"""A file that is read again while clients work, and topics that have other names in their cluster."""

import json
import resource
import signal
import socket
import struct
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.stack.kafka import KafkaCluster
from tests.proxy.raw import answer, asked, at_bootstrap, coordinator, fetch, metadata, request, text
from tests.proxy.support import WEST, configured, create, proxied, read, running, take, write
from tests.support import TIMEOUT, wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]


def test_a_file_read_again_drops_nobody_whose_clusters_are_the_same(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    file = configured(tmp_path, {"east": east.address})
    with running(file) as proxy, at_bootstrap(proxy) as kept:
        create(proxy.settings(), {"stays": 1})
        producer = Producer(proxy.settings())
        producer.produce("stays", "before")
        assert producer.flush(TIMEOUT) == 0
        reader = Consumer(proxy.settings(group_id="stays", auto_offset_reset="earliest"))
        reader.subscribe(["stays"])
        assert [message.value() for message in take(reader, 1)] == [b"before"]

        content = json.loads(file.read_text())
        content["clusters"]["west"] = {"bootstrap": west.address}
        content["routes"] = {"topics": [{"match": "eu.*", "cluster": "west"}]}
        file.write_text(json.dumps(content))
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "reloaded; serving east, west as one" in proxy.log.read_text(), "the file is read again")

        producer.produce("stays", "after")
        producer.produce("eu.comes", "after")
        assert producer.flush(TIMEOUT) == 0
        assert [message.value() for message in take(reader, 1)] == [b"after"]
        reader.close()
        # The very same connection, not another that a client made without a word.
        assert nodes(kept) == {1, 1_000_001}
        assert len(read(proxy.settings(), ["eu.comes"], 1)) == 1

        file.write_text("clusters: {}")
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "not reloaded, all stays as it was" in proxy.log.read_text(), "the reason is told")
        write(proxy.settings(), [("stays", "still")])
    assert "eu.comes" in AdminClient({**west.settings()}).list_topics(timeout=TIMEOUT).topics


def test_a_file_read_again_ends_the_connections_to_what_is_another_when_they_are_answered(
    clusters: Clusters, tmp_path: Path
) -> None:
    east, west = clusters
    users = {"users": {"alice": "a", "bob": "b"}, "mechanisms": ["PLAIN"]}
    file = configured(tmp_path, {"east": east.address, "west": west.address}, auth=users)
    with running(file) as proxy:
        secrets = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice"}
        settings = {**proxy.settings(), **secrets, "sasl.password": "a"}
        create(settings, {"eu.moves": 1})
        listed = AdminClient(settings).list_topics("eu.moves", timeout=TIMEOUT)
        host, port = listed.brokers[1_000_001].host, listed.brokers[1_000_001].port
        with at_bootstrap(proxy) as alice, at_bootstrap(proxy) as bob, \
                socket.create_connection((host, port), timeout=TIMEOUT) as moved:  # fmt: skip
            for connection, user in ((alice, "alice"), (bob, "bob"), (moved, "alice")):
                sign_in(connection, user, user[0])
            moved.sendall(fetch("eu.moves", wait_ms=100_000, correlation_id=7))
            wait_for(lambda: asked(proxy, "fetch") >= 1, "it waits at the broker")
            content = json.loads(file.read_text())
            del content["auth"]["users"]["bob"]
            content["filters"] = ["tests.proxy.filters:CoordinatorRouting"]
            # Another address of the same cluster: what goes there needs connections of its own.
            content["clusters"]["west"]["bootstrap"] = west.address.replace("127.0.0.1", "localhost")
            file.write_text(json.dumps(content))
            proxy.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "reloaded; serving" in proxy.log.read_text(), "the file is read again")
            assert nodes(alice) == {1, 1_000_001}
            assert coordinator(alice, "group")[2] == "found in east", "the new filters hold for who is there"
            assert bob.recv(1) == b"", "who may not sign in any more is not served"
            write(settings, [("eu.moves", "a")])
            assert answer(moved)[0] == 7
            assert moved.recv(1) == b""


def sign_in(connection: socket.socket, user: str, password: str) -> None:
    connection.sendall(request(17, 1, 1, text("PLAIN")))
    assert answer(connection)[1][:2] == b"\0\0"
    token = f"\0{user}\0{password}".encode()
    connection.sendall(request(36, 0, 2, struct.pack(">i", len(token)) + token))
    assert answer(connection)[1][:2] == b"\0\0"


def nodes(connection: socket.socket) -> set[int]:
    """The brokers that there are."""
    connection.sendall(metadata(3))
    _, body = answer(connection)
    (count,) = struct.unpack_from(">i", body)
    found, at = set(), 4
    for _ in range(count):
        node, size = struct.unpack_from(">ih", body, at)
        found.add(node)
        at += 4 + 2 + size + 4 + 2
    return found


def test_a_process_without_a_file_for_a_connection_says_so_and_takes_it_later(
    clusters: Clusters, tmp_path: Path
) -> None:
    file = configured(tmp_path, {"east": clusters[0].address})
    with running(file) as proxy:
        pid = proxy.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        assert soft >= min(hard, 20_000), "it allows itself what its connections need"
        with at_bootstrap(proxy) as last:
            assert nodes(last) == {1}
            # As many as it has open without a gap: there is no number for another.
            used = {int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir()}
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(n for n in count() if n not in used), hard))
            with at_bootstrap(proxy) as waits:
                wait_for(lambda: "no connection can be taken on port" in proxy.log.read_text(), "it is told")
                # Who is there is served, and not a line is written in every turn of the loop.
                assert nodes(last) == {1}
                assert proxy.log.read_text().count("no connection can be taken") < 20
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
                assert nodes(waits) == {1}


def test_a_file_may_be_read_again_before_the_clusters_have_answered(tmp_path: Path) -> None:
    # Connections are taken by the kernel, and nobody answers over them.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        file = configured(tmp_path, {"east": address}, timeouts={"connect_s": 1, "health_s": 1})
        log = tmp_path / "begins.log"
        command = [sys.executable, "-m", "strandline", "proxy", "--config", str(file)]
        with log.open("w") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
            try:
                wait_for(lambda: "/metrics" in log.read_text(), "it begins")
                process.send_signal(signal.SIGHUP)
                wait_for(lambda: "reloaded; serving east as one" in log.read_text(), "the file is read again")
            finally:
                process.terminate()
        assert process.returncode == 0


def test_where_no_cluster_answers_nobody_is_let_in_and_a_reason_is_told(tmp_path: Path) -> None:
    file = configured(tmp_path, {"east": "127.0.0.1:1", "west": "127.0.0.1:1"})
    with running(file, ready=False) as proxy, at_bootstrap(proxy) as connection:
        assert connection.recv(1) == b""
        wait_for(lambda: "no cluster answers" in proxy.log.read_text(), "the reason is told")


def test_topics_have_other_names_in_their_cluster(clusters: Clusters, tmp_path: Path) -> None:
    east, west = clusters
    astray = {"match": "astray-*", "cluster": "west"}
    sections = {"routes": {"topics": [*WEST, astray], "topic_names": {"west": {"prefix": "eu."}}}}
    with proxied(tmp_path, sections=sections, east=east.address, west=west.address) as proxy:
        create(proxy.settings(), {"eu.renamed": 2, "renamed": 1})
        write(proxy.settings(enable_idempotence=True), [("eu.renamed", f"{n}") for n in range(50)])
        assert len(read(proxy.settings(group_id="eu-renamed"), ["eu.renamed", "renamed"], 50)) == 50
        assert len(read(west.settings(), ["renamed"], 50)) == 50
        admin = AdminClient(proxy.settings())
        topics = admin.list_topics(timeout=TIMEOUT).topics
        assert len(topics["eu.renamed"].partitions) == 2
        assert len(topics["renamed"].partitions) == 1
        # One that the routes send there without its prefix would come back under another name: it is no topic.
        (made,) = admin.create_topics([NewTopic("astray-made", 1)]).values()
        with pytest.raises(KafkaException, match="TOPIC_EXCEPTION"):
            made.result(TIMEOUT)
        asked = admin.list_topics("astray-asked", timeout=TIMEOUT).topics["astray-asked"]
        assert asked.error is not None
        assert asked.error.code() == KafkaError.TOPIC_EXCEPTION
    assert not [
        name for name in AdminClient({**west.settings()}).list_topics(timeout=TIMEOUT).topics if "astray" in name
    ]
