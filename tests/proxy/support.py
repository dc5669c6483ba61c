"""`strandline proxy` as its users run it, in front of real clusters; and what tests write, read and ask through it."""

import asyncio
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.static.primitive import i8, i32Timedelta

from strandline.proxy.cluster import Cluster, Limits
from strandline.stack.kafka import KafkaCluster
from strandline.stack.ports import LOOPBACK, free_port
from strandline.wire.kafka_frames import api_name
from tests.support import TIMEOUT, wait_for
from tests.topics import create_topics

PORTS = 4
COUNTS_FILE = "STRANDLINE_PROXY_COUNTS"
"""Names the file that `make proxy-matrix` has the counts of a run written to."""
WEST = [{"match": "eu.*", "cluster": "west"}]
WEST_IDS = [{"match": "eu-*", "cluster": "west"}]
TRIES = 5
PATIENT = Limits(connect_s=TIMEOUT, request_s=TIMEOUT, health_s=TIMEOUT)
"""For clusters that a test asks itself: how slow the machine is does not matter."""
SAMPLE = re.compile(r'^strandline_proxy_requests_total\{api="(\w+)",cluster="(\w+)",version="(\d+)"\} ([0-9.e+]+)$')


@dataclass
class Proxied:
    """A running proxy."""

    process: "subprocess.Popen[str]"
    address: str
    config: Path
    log: Path
    pages: str

    def settings(self, **more: object) -> dict[str, Any]:
        """What a client needs, with librdkafka's names written with underscores."""
        return {"bootstrap.servers": self.address} | {name.replace("_", "."): value for name, value in more.items()}

    def requests(self) -> Counter[tuple[str, str, int]]:
        """How often each API was used so far: cluster, API, version."""
        with urllib.request.urlopen(f"http://{self.pages}/metrics", timeout=TIMEOUT) as page:
            lines = page.read().decode().splitlines()
        found: Counter[tuple[str, str, int]] = Counter()
        for line in lines:
            if sample := SAMPLE.match(line):
                found[sample[2], sample[1], int(sample[3])] += round(float(sample[4]))
        return found

    def workers(self) -> list[int]:
        """The processes that serve for it, where there are several."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def figure(self, name: str) -> float:
        """One of its metrics that has no labels."""
        with urllib.request.urlopen(f"http://{self.pages}/metrics", timeout=TIMEOUT) as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"strandline_proxy_{name} "))

    def labelled(self, name: str, cluster: str) -> float:
        """One of its metrics of a cluster; 0 for one that was not counted yet."""
        with urllib.request.urlopen(f"http://{self.pages}/metrics", timeout=TIMEOUT) as page:
            lines = page.read().decode().splitlines()
        start = f'strandline_proxy_{name}{{cluster="{cluster}"}} '
        return next((float(line.split()[1]) for line in lines if line.startswith(start)), 0.0)

    def offered(self) -> dict[str, tuple[int, int]]:
        """The versions of each API that it offers."""
        host, port = self.address.split(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            (size,) = struct.unpack(">i", received(connection, 4))
            body = received(connection, size)
        return {api_name(key): (low, high) for key, low, high in struct.iter_unpack(">hhh", body[10:])}

    def keep_counts(self, file: Path) -> None:
        """Write down what was used and what is offered."""
        used = [[*key, count] for key, count in sorted(self.requests().items())]
        file.write_text(json.dumps({"requests": used, "offered": [[n, *v] for n, v in self.offered().items()]}))


def received(connection: socket.socket, count: int) -> bytes:
    """The next bytes, so many. A socket with a timeout does not block, so that MSG_WAITALL does not wait for all."""
    found = bytearray()
    while len(found) < count:
        part = connection.recv(min(count - len(found), 1 << 20))
        assert part, f"the connection was closed after {len(found)} of {count} bytes"
        found += part
    return bytes(found)


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for _ in range(200):
        first = free_port()
        probes = [socket.socket() for _ in range(count)]
        try:
            for place, probe in enumerate(probes):
                probe.bind((LOOPBACK, first + place))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return first
    raise AssertionError(f"no {count} free ports in a row")


def configured(directory: Path, clusters: Mapping[str, str | dict[str, Any]], **sections: Any) -> Path:
    """A file for clusters, of which the first is primary and `west` has what begins with `eu`."""
    west = "west" in clusters
    content: dict[str, Any] = {
        "listen": {"ports": PORTS},
        "clusters": {
            name: {"bootstrap": given} if isinstance(given, str) else given for name, given in clusters.items()
        },
        "routes": {"topics": WEST, "groups": WEST_IDS, "transactional_ids": WEST_IDS} if west else {},
        "drain_s": 2,
    }
    for name, section in sections.items():
        known = content.get(name)
        content[name] = {**known, **section} if isinstance(known, dict) and isinstance(section, dict) else section
    file = directory / "proxy.yaml"
    file.write_text(json.dumps(content))
    place(file)
    return file


def place(file: Path) -> None:
    """Give the proxy of a file ports that nobody listens on now."""
    content = json.loads(file.read_text())
    first = free_ports(2 + PORTS * len(content["clusters"]))
    content["listen"] |= {"bootstrap_port": first, "first_broker_port": first + 2}
    content["observe"] = f"{LOOPBACK}:{first + 1}"
    file.write_text(json.dumps(content))


@contextmanager
def running(file: Path, *, again: bool = False, ready: bool = True, **options: Any) -> Iterator[Proxied]:
    """The proxy of a file, until it is left. `again`: on the ports that it had, where its clients look for it.

    It serves, and says so, also while a cluster does not answer. Unless a test wants that (`ready=False`), all of them
    are waited for: on a slow machine the first answer may come after the proxy's own limit.

    Ports that were free may be somebody's by the time the proxy wants them; then it is given others.
    """
    for tried in range(1, TRIES + 1):
        with _started(file, **options) as (process, line, log):
            if "cannot listen" in log.read_text() and not again and tried < TRIES:
                place(file)
                continue
            assert line.startswith("serving"), log.read_text()
            content = json.loads(file.read_text())
            address = f"{LOOPBACK}:{content['listen']['bootstrap_port']}"
            proxy = Proxied(process, address, file, log, content["observe"])
            if ready:
                wait_for(partial(is_ready, proxy), "every cluster answers the proxy")
            yield proxy
            return


@contextmanager
def _started(file: Path, **options: Any) -> "Iterator[tuple[subprocess.Popen[str], str, Path]]":
    log = file.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "proxy", "--config", str(file)],
            stdout=subprocess.PIPE, stderr=errors, text=True, **options,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline(), log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def proxied(
    directory: Path, *, sections: Mapping[str, Any] | None = None, ready: bool = True, **clusters: Any
) -> Iterator[Proxied]:
    """A proxy in front of clusters given by their addresses or sections."""
    with running(configured(directory, clusters, **(sections or {})), ready=ready) as proxy:
        yield proxy


def create(settings: Mapping[str, Any], topics: Mapping[str, int], **options: Any) -> None:
    """Create topics with so many partitions each."""
    create_topics(settings, *(NewTopic(name, count, **options) for name, count in topics.items()))


def write(settings: Mapping[str, Any], records: Iterable[tuple[str, str]], **options: Any) -> None:
    """Write values to topics, each with itself as the key, and wait until all are acknowledged."""
    failures: list[KafkaError] = []

    def told(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({**settings, "linger.ms": 2, **options})
    for topic, value in records:
        producer.produce(topic, value, key=value, on_delivery=told)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    assert failures == []


def read(
    settings: Mapping[str, Any], topics: Iterable[str], count: int, **options: Any
) -> "list[Message[bytes, bytes]]":
    """Read so many records from the beginning, as a group of its own unless one is named."""
    group = {"group.id": f"reader-{time.monotonic_ns()}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**group, **settings, **options})
    consumer.subscribe(list(topics))
    try:
        return take(consumer, count)
    finally:
        consumer.close()


def take(consumer: Consumer, count: int, within: float = TIMEOUT) -> "list[Message[bytes, bytes]]":
    """So many records of a consumer."""
    found: list[Message[bytes, bytes]] = []
    deadline = time.monotonic() + within
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            assert error is None or error.retriable() or not error.fatal(), error
            if error is None:
                found.append(message)
    return found


def record_count(settings: Mapping[str, Any], topic: str) -> int:
    """How many records a topic of one partition has."""
    consumer = Consumer({**settings, "group.id": "counter"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT)
    consumer.close()
    return high - low


def level_producer_ids(clusters: Iterable[KafkaCluster]) -> None:
    """Let all clusters give out the same producer id next."""

    async def level() -> None:
        asked = [Cluster(cluster.name, cluster.settings(), PATIENT) for cluster in clusters]
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout=i32Timedelta.parse(timedelta(minutes=1))
        )

        async def next_id(cluster: Cluster) -> int:
            # A broker that has to get ids first says so, and none.
            while (answer := await cluster.ask(request)).error_code is not ErrorCode.none:
                assert answer.error_code is ErrorCode.coordinator_load_in_progress
                await asyncio.sleep(0.02)
            return int(answer.producer_id)

        given = [await next_id(cluster) for cluster in asked]
        for number, cluster in enumerate(asked):
            while given[number] < max(given):
                given[number] = await next_id(cluster)
            cluster.close()
        assert len(set(given)) == 1
        assert given[0] >= 0

    asyncio.run(asyncio.wait_for(level(), TIMEOUT))


async def configuration_of(proxy: Proxied, kind: int, name: str) -> tuple[str, ErrorCode]:
    """Ask for the configuration of something: its name in the answer, and the error."""
    asked = Cluster("proxy", {"bootstrap.servers": proxy.address}, PATIENT)
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=None)
    try:
        (found,) = (await asked.ask(DescribeConfigsRequest(resources=(resource,)))).results
    finally:
        asked.close()
    return found.resource_name, found.error_code


def is_down(proxy: Proxied, cluster: str) -> bool:
    """Whether the proxy says that a cluster does not answer."""
    try:
        urllib.request.urlopen(f"http://{proxy.pages}/readyz", timeout=TIMEOUT).close()
    except urllib.error.HTTPError as answer:
        with answer:
            return f"cluster {cluster} does not answer" in answer.read().decode()
    return False


def is_ready(proxy: Proxied) -> bool:
    """Whether every worker finds every cluster up."""
    try:
        urllib.request.urlopen(f"http://{proxy.pages}/readyz", timeout=TIMEOUT).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        return False
    return True


class Writer:
    """Writes numbered values to a topic until it is told to stop, and knows which were acknowledged."""

    def __init__(self, proxy: Proxied, topic: str, **options: object) -> None:
        self.acknowledged: Counter[str] = Counter()
        self._topic = topic
        self._stop = Event()
        # Idempotent, and patient: what it gives up on would be lost, and not by the proxy.
        patient = {"enable_idempotence": True, "linger_ms": 5, "message_timeout_ms": 300_000}
        self._producer = Producer(proxy.settings(**{**patient, **options}))
        self._thread = Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT) == 0

    def _write(self) -> None:
        number = 0
        while not self._stop.wait(0.005):
            value = f"{number}"
            self._producer.produce(self._topic, value, key=value, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        assert error is None, error
        self.acknowledged[message.value().decode()] += 1  # type: ignore[attr-defined]


def lies_there(cluster: KafkaCluster, topic: str, expected: Counter[str]) -> bool:
    """Whether a topic holds just these values, read from its cluster itself."""
    return values_of(cluster, topic) == expected


def values_of(cluster: KafkaCluster, topic: str) -> Counter[str]:
    """The values of a topic, read from its cluster itself, up to the end of every partition."""
    reader = Consumer({**cluster.settings(), "group.id": f"whole-{time.monotonic_ns()}", "enable.partition.eof": True})
    partitions = reader.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    found: Counter[str] = Counter()
    ended: set[int | None] = set()
    deadline = time.monotonic() + TIMEOUT
    while ended < set(partitions):
        assert time.monotonic() < deadline, f"{found.total()} records of {topic}, the end of {len(ended)} partitions"
        for message in reader.consume(1000, 0.2):
            error = message.error()
            if error is None:
                found[(message.value() or b"").decode()] += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    reader.close()
    return found
