"""The gateway: messages delivered by a second of its CPU, how late, resumes warm and cold, clients that wait.

`python -m bench.gateway`, with `--quick` for a smoke run.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import urlsplit

import numpy as np
import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.topics import create_topics

from bench.amounts import parse
from bench.figures import Figure, report
from bench.gateway_clients import Listener, masked
from bench.process import TICKS_A_SECOND, cpu_seconds
from strandline.stack import Stack

PAYLOAD = 200
WARM_UP_S = 2.0
"""How long records come before they are counted."""
LIMIT_S = 300.0
READ_AT_FULL_RATE = 16
"""At the full rate one record in so many is read as JSON, else the clients would be what is measured."""
T = TypeVar("T")
SETTINGS = """\
token_every_s: 3600
history_bytes: 1024
limits: {cold_every_s: 0.001, queue_bytes: 67108864, connections_per_address: 20000}
"""


@dataclass(frozen=True)
class Amounts:
    """How many clients and records, and for how long."""

    seconds: float = 10.0
    subscribers: int = 500
    full_rate: int = 4_000
    """Records a second to all of them."""
    calm_subscribers: int = 100
    live_rate: int = 10_000
    """Deliveries a second to those."""
    resumes: int = 300
    cold_resumes: int = 50
    idle: int = 5_000
    storm: int = 500
    past: int = 60_000
    """Records in Kafka before the gateway begins; 15,000 or more, as 10,000 from a third on are read at once."""


QUICK = Amounts(
    seconds=1.0,
    subscribers=50,
    full_rate=1_000,
    calm_subscribers=10,
    live_rate=1_000,
    resumes=10,
    cold_resumes=5,
    idle=100,
    storm=20,
    past=15_000,
)


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
    create_topics({"bootstrap.servers": kafka}, NewTopic(topic, 1, 1))


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


def delivered(
    kafka: str, directory: Path, *, rate: float, subscribers: int, seconds: float, every: int
) -> tuple[dict[str, float], float]:
    """What clients counted at a rate of records, one in `every` read as JSON, and the gateway's CPU for it."""
    topic = f"live-{rate:g}-{subscribers}"
    create(kafka, topic)
    with gateway(kafka, topic, directory) as (url, pid):
        argv = [sys.executable, "-m", "bench.gateway_clients", url, *map(str, (subscribers, "a", seconds, every))]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            assert clients.stdin is not None and clients.stdout is not None  # noqa: S101  (asked for)
            if clients.stdout.readline().strip() != "ready":
                raise AssertionError("the clients did not come up")
            writer = subprocess.Popen(
                [sys.executable, "-m", "bench.gateway", "produce", kafka, topic, str(rate), str(LIMIT_S)]
            )
            try:
                if clients.stdout.readline().strip() != "flowing":
                    raise AssertionError("no record came to the clients")
                time.sleep(min(seconds, WARM_UP_S))
                clients.stdin.write("go\n")
                clients.stdin.flush()
                before = cpu_seconds(pid)
                counted: dict[str, float] = json.loads(clients.stdout.readline())
                # The kernel counts in ticks: a smoke run may take less than one.
                used = max(cpu_seconds(pid) - before, 1 / TICKS_A_SECOND)
            finally:
                writer.terminate()
                writer.wait(60)
    if every == 1 and counted["read"] != counted["messages"]:
        raise AssertionError(f"{counted['read']:g} of {counted['messages']:g} messages were read")
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


async def storm(url: str, topic: str, first: int, clients: int) -> float:
    """Many at once; until the last has all, in milliseconds."""
    begin = time.perf_counter()
    await asyncio.gather(*(resume(url, topic, first, 100) for _ in range(clients)))
    return (time.perf_counter() - begin) * 1000


async def idle(url: str, pid: int, clients: int) -> float:
    """Kilobytes of the gateway for each client that only listens."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    hello = masked(b'{"type":"subscribe","data":{"channels":["quiet"]}}')
    before = resident_kb(pid)
    listeners = []
    for _ in range(clients):
        _, listener = await loop.create_connection(
            lambda: Listener(place.netloc, hello), place.hostname or "", place.port or 0
        )
        await listener.subscribed
        listeners.append(listener)
    kept = (resident_kb(pid) - before) / clients
    for listener in listeners:
        listener.transport.close()
    return kept


def on_uvloop(work: Coroutine[None, None, T]) -> T:
    """Run it as the clients do."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def live(kafka: str, directory: Path, amounts: Amounts) -> list[Figure]:
    """Records as they come."""
    full, used = delivered(
        kafka,
        directory,
        rate=amounts.full_rate,
        subscribers=amounts.subscribers,
        seconds=amounts.seconds,
        every=READ_AT_FULL_RATE,
    )
    calm, _ = delivered(
        kafka,
        directory,
        rate=amounts.live_rate / amounts.calm_subscribers,
        subscribers=amounts.calm_subscribers,
        seconds=amounts.seconds,
        every=1,
    )
    return [
        Figure(
            "gateway.delivered_per_s",
            full["messages"] / full["seconds"],
            f"to {amounts.subscribers} clients that check each",
        ),
        Figure("gateway.delivered_per_cpu_s", full["messages"] / used, "by a second of its CPU", floor=600_000),
        Figure(
            "gateway.live_p50_ms",
            calm["p50"],
            f"written to parsed, every record, {amounts.live_rate:,} deliveries a second to {amounts.calm_subscribers}",
        ),
        Figure("gateway.live_p99_ms", calm["p99"], "the same"),
    ]


def resumed(kafka: str, directory: Path, amounts: Amounts) -> list[Figure]:
    """Records that were missed, and clients that only wait."""
    create(kafka, "past")
    # On a busy machine a second does not do.
    while log_end(kafka, "past") < amounts.past:
        produce(kafka, "past", amounts.past, 1.0)
    with gateway(kafka, "past", directory) as (url, pid):
        # What it holds in memory came after it began.
        produce(kafka, "past", 2_000, 1.0)
        end = log_end(kafka, "past")
        warm = on_uvloop(resumes(url, "past", [end - 100] * amounts.resumes, 100))
        at_once = on_uvloop(storm(url, "past", end - 100, amounts.storm))
        # Far from each other, so that none finds what another has read.
        cold = on_uvloop(
            resumes(url, "past", range(0, amounts.past // 2, amounts.past // 2 // amounts.cold_resumes), 100)
        )
        many = on_uvloop(resume(url, "past", amounts.past // 3, 10_000))
        kept = on_uvloop(idle(url, pid, amounts.idle))
    return [
        Figure("gateway.warm_p50_ms", float(np.percentile(warm, 50)), "100 from memory, dial to parsed", ceiling=1.5),
        Figure("gateway.warm_p99_ms", float(np.percentile(warm, 99)), "the same", ceiling=5.0),
        Figure("gateway.cold100_p50_ms", float(np.percentile(cold, 50)), "100 from Kafka"),
        Figure("gateway.cold10k_ms", many, "10,000 from Kafka"),
        Figure("gateway.kb_per_idle", kept, f"of {amounts.idle:,} clients", ceiling=50),
        Figure("gateway.storm500_ms", at_once, f"{amounts.storm} resume 100 at once, until the last has all"),
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
    amounts, is_quick = parse("bench.gateway", Amounts(), QUICK)
    with Stack(["kafka"]) as stack, TemporaryDirectory() as name:
        kafka, directory = stack.kafka[0].address, Path(name)
        figures = [*live(kafka, directory, amounts), *resumed(kafka, directory, amounts)]
    report("The gateway", figures, is_quick=is_quick)


if __name__ == "__main__":
    main()
