"""The proxy against the cluster itself, in pairs: writing, reading, its CPU, what it adds to a round, Metadata.

With librdkafka in processes of their own, 1 KB a record, acks=1, four partitions. The direct run and the one through
the proxy change places from pair to pair, and the middle of the ratios counts. The brokers' logs are in memory where
there is room, and what was written is gone before the next run: else a disk that cannot follow decides from the second
gigabyte on, or memory that was never used before, which takes a broker twice as long to write to.

`python -m bench.proxy`, with `--quick` for a smoke run.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from kio.schema.metadata.v12.request import MetadataRequest
from tests.proxy.support import free_ports
from tests.topics import create_topics

from bench.amounts import parse
from bench.figures import Figure, report
from bench.process import cpu_seconds
from strandline.stack import Stack
from strandline.wire.kafka_frames import encode_request

SIZE = 1024
PARTITIONS = 4
CALM_RATE = 1_000
TOPIC_PARTITIONS = 12
BROKER_PORTS = 10
READ_AT_ONCE = 20_000
TOPIC = "bench"
IN_MEMORY = Path("/dev/shm")  # noqa: S108  (a name of its own is made in it)
ROOM = 8 << 30
DELETED_WITHIN_S = 90.0


@dataclass(frozen=True)
class Amounts:
    """How much goes each way, and how often."""

    records: int = 1_000_000
    """More than 20,000: a reader's first piece, which does not count, is as large."""
    pairs: int = 13
    calm_pairs: int = 5
    calm_s: float = 10.0
    topics: int = 100
    """Of each cluster, for Metadata."""
    asked: int = 300
    """How often Metadata is asked for."""


QUICK = Amounts(records=50_000, pairs=1, calm_pairs=1, calm_s=0.5, topics=5, asked=10)


def produce(kafka: str, topic: str, records: int) -> float:
    """Write as fast as it goes; records a second."""
    producer = Producer(
        {"bootstrap.servers": kafka, "acks": 1, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    )
    value = os.urandom(SIZE)
    producer.list_topics(topic, timeout=30)
    begin = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.02)
    producer.flush(120)
    return records / (time.perf_counter() - begin)


def consume(kafka: str, topic: str, records: int) -> float:
    """Read as fast as it goes from the beginning; records a second, behind the first that come."""
    # As it comes, a client whose queue is full asks for nothing for a second. That strikes whoever is served faster, so
    # that the figure would be of the client's sleep: direct reads came to a third of what they are.
    queue = {"queued.min.messages": 500_000, "fetch.queue.backoff.ms": 1}
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "bench", **queue})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    first = 0
    while not first:
        first = len(consumer.consume(READ_AT_ONCE, 1.0))
    seen, begin = first, time.perf_counter()
    while seen < records:
        seen += len(consumer.consume(READ_AT_ONCE, 1.0))
    took = time.perf_counter() - begin
    consumer.close()
    return (records - first) / took


def calm(kafka: str, topic: str, seconds: float) -> list[float]:
    """Milliseconds from a record to its acknowledgement, at a rate that is no trouble."""
    producer = Producer({"bootstrap.servers": kafka, "acks": 1, "linger.ms": 0})
    took: list[float] = []

    def acknowledged(sent: float, _: object, __: object) -> None:
        took.append((time.perf_counter() - sent) * 1000)

    begin, written = time.perf_counter(), 0
    value = os.urandom(SIZE)
    while (elapsed := time.perf_counter() - begin) < seconds:
        while written < elapsed * CALM_RATE:
            producer.produce(topic, value, on_delivery=partial(acknowledged, time.perf_counter()))
            written += 1
        producer.poll(0.0005)
    producer.flush(30)
    return took


def by_itself(what: str, *arguments: str) -> str:
    """A part of this in a process of its own."""
    argv = [sys.executable, "-m", "bench.proxy", what, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=600).stdout.strip()


@contextmanager
def proxy(clusters: dict[str, str], directory: Path) -> Iterator[tuple[str, int]]:
    """A proxy as a process; where it is, and its id."""
    port = free_ports(1 + BROKER_PORTS)
    content = {
        "listen": {"bootstrap_port": port, "first_broker_port": port + 1, "ports": BROKER_PORTS},
        "clusters": {name: {"bootstrap": address} for name, address in clusters.items()},
        "routes": {"topics": [{"match": f"{name}.*", "cluster": name} for name in clusters]},
    }
    config = directory / "proxy.yaml"
    config.write_text(json.dumps(content))
    argv = [sys.executable, "-m", "strandline", "proxy", "--config", str(config)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()
            process.wait(30)


def delete_at_once(kafka: str) -> None:
    """Have a broker delete the files of a topic with it, not in a minute."""
    entry = ConfigEntry("log.segment.delete.delay.ms", "0", incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka})
    for done in admin.incremental_alter_configs([broker]).values():
        done.result(120)


def delete(admin: AdminClient, topic: str, logs: Path) -> None:
    """Delete a topic; until its files are gone."""
    admin.delete_topics([topic])[topic].result(120)
    until = time.monotonic() + DELETED_WITHIN_S
    while any(logs.rglob(f"{topic}-*")):
        if time.monotonic() > until:
            raise AssertionError(f"the files of {topic} are still there after {DELETED_WITHIN_S:g} s")
        time.sleep(0.1)


def paired(what: str, places: tuple[str, str], pid: int, amounts: Amounts, logs: Path) -> tuple[float, float]:
    """The ratio of the proxy's rate to the direct one, and the proxy's CPU seconds for a million records."""
    ratios, used = [], []
    direct, proxied = places
    admin = AdminClient({"bootstrap.servers": direct})
    for number in range(amounts.pairs):
        rates = {}
        for place in (direct, proxied) if number % 2 else (proxied, direct):
            topic = f"{TOPIC}-{number}-{'direct' if place == direct else 'proxied'}" if what == "produce" else TOPIC
            before = cpu_seconds(pid)
            rates[place] = float(by_itself(what, place, topic, str(amounts.records)))
            if place == proxied:
                used.append((cpu_seconds(pid) - before) * 1_000_000 / amounts.records)
            if topic != TOPIC:
                delete(admin, topic, logs)
        ratios.append(rates[proxied] / rates[direct])
        shown = f"{rates[direct]:,.0f}/s direct, {rates[proxied]:,.0f}/s through the proxy"
        print(f"  {what}: {shown}, {used[-1]:.2f} s of its CPU a million", file=sys.stderr, flush=True)
    return statistics.median(ratios), statistics.median(used)


def added_ms(direct: str, proxied: str, amounts: Amounts) -> tuple[float, float]:
    """What the proxy adds to the middle time of an acknowledgement and to that of the slowest in a hundred."""
    found = []
    for number in range(amounts.calm_pairs):
        took = {}
        for place in (direct, proxied) if number % 2 else (proxied, direct):
            took[place] = np.percentile(json.loads(by_itself("calm", place, "calm", str(amounts.calm_s))), [50, 99])
        shown = ", ".join(f"{took[direct][n]:.2f} and {took[proxied][n]:.2f} ms" for n in (0, 1))
        print(f"  calm: direct and through the proxy, p50 and p99: {shown}", file=sys.stderr, flush=True)
        found.append(took[proxied] - took[direct])
    middle, slow = np.median(found, axis=0)
    return float(middle), float(slow)


def received(connection: socket.socket) -> bytes:
    """The next answer, whole."""
    found = b""
    while len(found) < 4 or len(found) < 4 + int.from_bytes(found[:4]):
        part = connection.recv(1 << 20)
        if not part:
            raise AssertionError("the proxy closed the connection")
        found += part
    return found


def metadata_ms(address: str, topics: int, asked: int) -> float:
    """The middle time of Metadata of all topics over a connection that is open."""
    host, port = address.split(":")
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    frame = encode_request(request, 1, "bench")
    took = []
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(asked):
            begin = time.perf_counter()
            connection.sendall(frame)
            if len(received(connection)) < topics * TOPIC_PARTITIONS * 20:
                raise AssertionError("not all topics are there")
            took.append((time.perf_counter() - begin) * 1000)
    return statistics.median(took)


def create(kafka: str, names: list[str], partitions: int) -> None:
    """Topics."""
    create_topics({"bootstrap.servers": kafka}, *(NewTopic(name, partitions, 1) for name in names))


def main() -> None:
    """All figures."""
    amounts, is_quick = parse("bench.proxy", Amounts(), QUICK)
    place = IN_MEMORY if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM else None
    with (
        TemporaryDirectory(prefix="strandline-bench-", dir=place) as made,
        Stack(["kafka"], kafka_clusters=3, data=Path(made) / "kafka") as stack,
    ):
        names = ("one", "two", "three")
        addresses = {name: cluster.address for name, cluster in zip(names, stack.kafka, strict=True)}
        direct = addresses["one"]
        runs = [f"{TOPIC}-{n}-{way}" for n in range(amounts.pairs) for way in ("direct", "proxied")]
        delete_at_once(direct)
        create(direct, [TOPIC, "calm", *runs], PARTITIONS)
        for name, address in addresses.items():
            create(address, [f"{name}.{number}" for number in range(amounts.topics)], TOPIC_PARTITIONS)
        with proxy(addresses, Path(made)) as (through, pid):
            by_itself("produce", direct, TOPIC, str(amounts.records))
            fetch_ratio, fetch_cpu = paired("consume", (direct, through), pid, amounts, Path(made))
            produce_ratio, produce_cpu = paired("produce", (direct, through), pid, amounts, Path(made))
            added = added_ms(direct, through, amounts)
            asked = metadata_ms(through, amounts.topics * len(names), amounts.asked)
    figures = [
        Figure(
            "proxy.produce_ratio", produce_ratio, f"{amounts.records:,} records of 1 KB written, x direct", floor=0.9
        ),
        Figure("proxy.fetch_ratio", fetch_ratio, "the same read, x direct", floor=0.8),
        Figure("proxy.produce_cpu_s_per_m", produce_cpu, "s of the proxy's CPU a million written", ceiling=1.5),
        Figure("proxy.fetch_cpu_s_per_m", fetch_cpu, "s of the proxy's CPU a million read", ceiling=1.5),
        Figure("proxy.added_p50_ms", added[0], f"to an acknowledgement at {CALM_RATE:,} records/s"),
        Figure("proxy.added_p99_ms", added[1], "the same"),
        Figure(
            "proxy.metadata_ms", asked, f"Metadata of 3 x {amounts.topics} topics x {TOPIC_PARTITIONS}", ceiling=1.0
        ),
    ]
    report("The proxy", figures, is_quick=is_quick)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["produce", kafka, topic, count]:
            print(produce(kafka, topic, int(count)))
        case ["consume", kafka, topic, count]:
            print(consume(kafka, topic, int(count)))
        case ["calm", kafka, topic, seconds]:
            print(json.dumps(calm(kafka, topic, float(seconds))))
        case _:
            main()
