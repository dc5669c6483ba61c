"""The gateway: messages delivered by a second of its CPU, how late, resumes warm and cold, clients that wait."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np
import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.figures import Figure, report
from bench.gateway_clients import Listener, masked
from bench.process import cpu_seconds
from strandline.stack import Stack

SUBSCRIBERS = 500
SECONDS = 10.0
PAYLOAD = 200
FULL_RATE = 4_000
LIVE_RATE = 10_000
CALM_SUBSCRIBERS = 100
RESUMES = 300
IDLE = 5_000
STORM = 500
PAST = 60_000
T = TypeVar("T")
SETTINGS = """\
token_every_s: 3600
history_bytes: 1024
limits: {cold_every_s: 0.001, queue_bytes: 67108864, connections_per_address: 20000}
"""


def resident_kb(pid: int) -> int:
    """What it keeps in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@contextmanager
def gateway(kafka: str, topic: str, directory: Path, *, recent_bytes: int = 16 << 20) -> Iterator[tuple[str, int]]:
    """A gateway as a process; where it is, and its id."""
    config = directory / "gateway.yaml"
    config.write_text(
        f"kafka: {kafka}\nlisten: 127.0.0.1:0\ntopics: {{{topic}: {{}}}}\nauth: {{anonymous: true}}\n"
        f"recent_bytes: {recent_bytes}\n{SETTINGS}"
    )
    argv = [sys.executable, "-m", "strandline", "gateway", "--config", str(config)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101  (a pipe was asked for)
        try:
            yield process.stdout.readline().split()[-1], process.pid
        finally:
            process.terminate()
            process.wait(30)


def create(kafka: str, topic: str) -> None:
    """A topic of one partition."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def value() -> bytes:
    """A payload that says when it was written."""
    text = json.dumps({"at": time.time(), "pad": ""})
    return f'{text[:-2]}{"x" * (PAYLOAD - len(text))}"}}'.encode()


def produce(kafka: str, topic: str, rate: float, seconds: float) -> None:
    """Write so many records a second to one channel."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
    begin, written = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begin) < seconds:
        while written < elapsed * rate:
            producer.produce(topic, value(), key="a", on_delivery=None)
            written += 1
        producer.poll(0)
        time.sleep(0.001)
    producer.flush(30)


def delivered(kafka: str, directory: Path, rate: float, subscribers: int) -> tuple[dict[str, float], float]:
    """What clients counted at a rate of records, and the gateway's CPU for it."""
    topic = f"live-{rate:g}-{subscribers}"
    create(kafka, topic)
    with gateway(kafka, topic, directory) as (url, pid):
        argv = [sys.executable, "-m", "bench.gateway_clients", url, str(subscribers), "a", str(SECONDS)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None and clients.stdout is not None  # noqa: S101  (asked for)
            if clients.stdout.readline().strip() != "ready":
                raise AssertionError("the clients did not come up")
            writer = subprocess.Popen(
                [sys.executable, "-m", "bench.gateway", "produce", kafka, topic, str(rate), str(SECONDS + 4)]
            )
            time.sleep(2)
            clients.stdin.write("go\n")
            clients.stdin.flush()
            before = cpu_seconds(pid)
            counted: dict[str, float] = json.loads(clients.stdout.readline())
            used = cpu_seconds(pid) - before
            writer.wait(60)
    return counted, used


async def resume(url: str, topic: str, first: int, count: int) -> float:
    """From dial to the last of so many messages parsed, in milliseconds."""
    place = urlsplit(url)
    data = {"channels": ["a"], "positions": {topic: {"0": first}}, "credit": count}
    hello = masked(json.dumps({"type": "resume", "data": data}).encode())
    begin = time.perf_counter()
    loop = asyncio.get_running_loop()
    _, listener = await loop.create_connection(
        lambda: Listener(place.netloc, hello), place.hostname or "", place.port or 0
    )
    # The answer comes behind the last.
    await asyncio.wait_for(listener.subscribed, 60)
    took = time.perf_counter() - begin
    if listener.messages != count:
        raise AssertionError(f"{listener.messages} messages came, not {count}: {listener.told}")
    listener.transport.close()
    return took * 1000


async def resumes(url: str, topic: str, firsts: Sequence[int], count: int) -> list[float]:
    """One after the other."""
    return [await resume(url, topic, first, count) for first in firsts]


async def storm(url: str, topic: str, first: int) -> float:
    """Many at once; until the last has all, in milliseconds."""
    begin = time.perf_counter()
    await asyncio.gather(*(resume(url, topic, first, 100) for _ in range(STORM)))
    return (time.perf_counter() - begin) * 1000


async def idle(url: str, pid: int) -> float:
    """Kilobytes of the gateway for each client that only listens."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    hello = masked(b'{"type":"subscribe","data":{"channels":["quiet"]}}')
    before = resident_kb(pid)
    listeners = []
    for _ in range(IDLE):
        _, listener = await loop.create_connection(
            lambda: Listener(place.netloc, hello), place.hostname or "", place.port or 0
        )
        await listener.subscribed
        listeners.append(listener)
    kept = (resident_kb(pid) - before) / IDLE
    for listener in listeners:
        listener.transport.close()
    return kept


def on_uvloop(work: Coroutine[None, None, T]) -> T:
    """Run it as the clients do."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def live(kafka: str, directory: Path) -> list[Figure]:
    """Records as they come."""
    full, used = delivered(kafka, directory, FULL_RATE, SUBSCRIBERS)
    calm, _ = delivered(kafka, directory, LIVE_RATE / CALM_SUBSCRIBERS, CALM_SUBSCRIBERS)
    return [
        Figure(
            "gateway.delivered_per_s", full["messages"] / full["seconds"], f"to {SUBSCRIBERS} clients that check each"
        ),
        Figure("gateway.delivered_per_cpu_s", full["messages"] / used, "by a second of its CPU", floor=600_000),
        Figure(
            "gateway.live_p50_ms",
            calm["p50"],
            f"written to parsed, {LIVE_RATE:,} deliveries a second to {CALM_SUBSCRIBERS}",
        ),
        Figure("gateway.live_p99_ms", calm["p99"], "the same"),
    ]


def resumed(kafka: str, directory: Path) -> list[Figure]:
    """Records that were missed, and clients that only wait."""
    create(kafka, "past")
    # On a busy machine a second does not do.
    while log_end(kafka, "past") < PAST:
        produce(kafka, "past", PAST, 1.0)
    with gateway(kafka, "past", directory) as (url, pid):
        # What it holds in memory came after it began.
        produce(kafka, "past", 2_000, 1.0)
        end = log_end(kafka, "past")
        warm = on_uvloop(resumes(url, "past", [end - 100] * RESUMES, 100))
        at_once = on_uvloop(storm(url, "past", end - 100))
        # Far from each other, so that none finds what another has read.
        cold = on_uvloop(resumes(url, "past", range(0, PAST // 2, PAST // 2 // 50), 100))
        many = on_uvloop(resume(url, "past", PAST // 3, 10_000))
        kept = on_uvloop(idle(url, pid))
    return [
        Figure("gateway.warm_p50_ms", float(np.percentile(warm, 50)), "100 from memory, dial to parsed", ceiling=1.5),
        Figure("gateway.warm_p99_ms", float(np.percentile(warm, 99)), "the same", ceiling=5.0),
        Figure("gateway.cold100_p50_ms", float(np.percentile(cold, 50)), "100 from Kafka"),
        Figure("gateway.cold10k_ms", many, "10,000 from Kafka"),
        Figure("gateway.kb_per_idle", kept, f"of {IDLE:,} clients", ceiling=50),
        Figure("gateway.storm500_ms", at_once, f"{STORM} resume 100 at once, until the last has all"),
    ]


def log_end(kafka: str, topic: str) -> int:
    """Where the topic's one partition ends."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "bench"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


def main() -> None:
    """Measure all, or write records for somebody who does."""
    if sys.argv[1:2] == ["produce"]:
        _, _, kafka, topic, rate, seconds = sys.argv
        produce(kafka, topic, float(rate), float(seconds))
        return
    with Stack(["kafka"]) as stack, TemporaryDirectory() as name:
        kafka, directory = stack.kafka[0].address, Path(name)
        figures = [*live(kafka, directory), *resumed(kafka, directory)]
    report("The gateway", figures)


if __name__ == "__main__":
    main()
