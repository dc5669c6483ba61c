"""How fast a log is read in the order of its time, beside confluent-kafka (in no order) and kafkars (in order).

Each peer is read as it comes and tuned (see `TUNED` of the reader), as the first is what most have and the second is
what it does when it need not wait: a claim that we are faster has to hold for both.

`python -m bench.ordered`, with `--quick` for a smoke run and `--peers` to leave some out; kafkars is skipped where
it is not installed.
"""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.topics import create_topics

from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered_reader import Reading
from strandline.stack import Stack

PARTITIONS = 4
FIRST_TIME_MS = 1_700_000_000_000
LONGEST_RUN = 4_000
BATCH_SIZES = {
    "ours": [0],
    "confluent": [10_000],
    "confluent_tuned": [10_000],
    "kafkars": [1_000, 10_000, 50_000, 100_000, 500_000],
    "kafkars_tuned": [100_000, 500_000],  # 10,000 was five times as slow tuned as not
}
"""What is tried in the first round; the later ones repeat the best."""
FLOORS = {"kafkars": 10.0, "confluent": 6.0}
"""How many times as fast we have to be as a peer as it comes."""
LIMIT_S = 60.0
"""A reading that takes longer is cut, and its speed is that of the rows read by then."""


@dataclass(frozen=True)
class Amounts:
    """How much is read, how often and by which."""

    records: int = field(default=2_000_000, metadata={"help": "of the events; a tenth as many of 1 KB"})
    rounds: int = 3
    batch_sizes: int = field(default=5, metadata={"help": "how many of a peer's batch sizes the first round tries"})
    peers: tuple[str, ...] = field(default=tuple(BATCH_SIZES), metadata={"choices": BATCH_SIZES})


QUICK = Amounts(records=20_000, rounds=1, batch_sizes=1)


@dataclass(frozen=True, slots=True)
class Log:
    """A topic to be read."""

    topic: str
    rows: int
    compression: str
    record: Callable[[int], tuple[bytes, bytes]]
    """Key and value of the n-th record."""


def event(number: int) -> tuple[bytes, bytes]:
    """A small event: 100 bytes, key included."""
    account = number * 7919 % 1_000_000
    value = b'{"account":%06d,"number":%08d,"kind":"transfer","amount":%07d,"currency":"EUR"}'
    return b"acct%06d" % account, value % (account, number, number * 104_729 % 10_000_000)


def random_kilobyte(number: int) -> tuple[bytes, bytes]:
    """A value in which no compression finds anything."""
    return b"blob%06d" % number, random.Random(number).randbytes(1024)


def places(rows: int) -> Iterator[tuple[int, int]]:
    """Partition and time of each record, by time.

    Time goes on in one partition for a while, then in another: each partition rises, and jumps where the others were.
    Some of these runs are of one record, some of thousands, so neither short nor long waits are spared a reader.
    """
    chance = np.random.default_rng(1)
    lengths = np.exp(chance.uniform(0, np.log(LONGEST_RUN), rows)).astype(np.int64)
    partitions = np.repeat(chance.integers(0, PARTITIONS, rows), lengths)[:rows]
    times = FIRST_TIME_MS + np.cumsum(chance.integers(0, 3, rows))
    return zip(partitions.tolist(), times.tolist(), strict=True)


def fill(address: str, log: Log) -> None:
    """Write the log and make sure that the broker has every record once."""
    begin = time.perf_counter()
    # The times are of years ago: the broker would soon delete the records for their age.
    topic = NewTopic(log.topic, PARTITIONS, 1, config={"retention.ms": "-1"})
    create_topics({"bootstrap.servers": address}, topic)
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "compression.type": log.compression,
        "linger.ms": 100,
        "queue.buffering.max.messages": 200_000,
        "log_level": 3,  # a broker that has just started may have to be asked twice, and that is no news
    }
    producer = Producer(settings)
    for number, (partition, time_ms) in enumerate(places(log.rows)):
        key, value = log.record(number)
        while True:
            try:
                producer.produce(log.topic, value, key, partition=partition, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()
    found = count_rows(address, log.topic)
    if found != log.rows:
        raise AssertionError(f"{log.topic} has {found:,} records, and {log.rows:,} were written")
    progress(f"{log.topic}: {log.rows:,} records written in {time.perf_counter() - begin:.1f} s")


def count_rows(address: str, topic: str) -> int:
    """How many records a topic has."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
    marks = [consumer.get_watermark_offsets(TopicPartition(topic, partition)) for partition in range(PARTITIONS)]
    consumer.close()
    return sum(high - low for low, high in marks)


def read(peer: str, batch_size: int, address: str, log: Log) -> Reading:
    """Read a log in a fresh process; what it did."""
    arguments = (peer, address, log.topic, log.rows, batch_size, LIMIT_S)
    command = [sys.executable, "-m", "bench.ordered_reader", *map(str, arguments)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S * 3, check=True).stdout
    reading = Reading(**json.loads(output))
    cut = peer.startswith("kafkars") and reading.seconds > LIMIT_S
    if reading.rows != log.rows and not cut:
        raise AssertionError(f"{peer} read {reading.rows:,} of the {log.rows:,} rows of {log.topic}")
    progress(
        f"{log.topic}: {peer}{f' by {batch_size:,}' if batch_size else ''}: {reading.rows:,} rows"
        f" in {reading.seconds:.2f} s, {reading.rows_per_s:,.0f} a second, first batch after"
        f" {reading.first_batch_s * 1000:.0f} ms, {reading.inversions:,} inversions, CPU {reading.cpu_s:.1f} s,"
        f" peak {reading.peak_mb:.0f} MB (+{reading.growth_mb:.0f})"
    )
    return reading


def compare(peers: Sequence[str], amounts: Amounts, address: str, log: Log) -> dict[str, list[Reading]]:
    """All readings of a log, the peers in turn in each round."""
    readings: dict[str, list[Reading]] = {peer: [] for peer in peers}
    for _ in range(amounts.rounds):
        for peer, done in readings.items():
            sizes = [best(done).batch_size] if done else BATCH_SIZES[peer][: amounts.batch_sizes]
            done += [read(peer, size, address, log) for size in sizes]
    return readings


def installed(peers: Sequence[str]) -> list[str]:
    """The peers without those whose library is missing."""
    if find_spec("kafkars") is not None:
        return list(peers)
    progress("kafkars is not installed: it is skipped")
    return [peer for peer in peers if not peer.startswith("kafkars")]


def best(readings: Sequence[Reading]) -> Reading:
    """The fastest."""
    return max(readings, key=lambda reading: reading.rows_per_s)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def figures(events: dict[str, list[Reading]], blobs: dict[str, list[Reading]]) -> Iterator[Figure]:
    """What there is to say of those that took part."""
    peers = [peer for peer in events if peer != "ours"]
    if "ours" in events:
        yield from our_figures(events["ours"], blobs["ours"])
        for peer in peers:
            what = "times as fast, peer tuned" if peer.endswith("_tuned") else "times as fast, peer as it comes"
            ratio = best(events["ours"]).rows_per_s / best(events[peer]).rows_per_s
            yield Figure(f"ordered.vs_{peer}", ratio, f"{what}, events", floor=FLOORS.get(peer))
            ratio = best(blobs["ours"]).rows_per_s / best(blobs[peer]).rows_per_s
            yield Figure(f"ordered.random1k_vs_{peer}", ratio, f"{what}, random kilobytes")
    for peer in peers:
        yield from peer_figures(peer, events[peer])


def our_figures(events: Sequence[Reading], blobs: Sequence[Reading]) -> Iterator[Figure]:
    disorder = max(reading.inversions for reading in (*events, *blobs))
    soonest = min(reading.first_batch_s for reading in events)
    peak = max(events, key=lambda reading: reading.peak_mb)
    yield Figure("ordered.rows_per_s", best(events).rows_per_s, "100-byte events, lz4, in order, as Arrow batches")
    yield Figure(
        "ordered.inversions", disorder, "rows given after a later one, most of any run", ceiling=0, is_exact=True
    )
    yield Figure("ordered.first_batch_ms", soonest * 1000, "from the first call, best run")
    yield Figure("ordered.peak_mb", peak.peak_mb, f"most of any run, {peak.growth_mb:.0f} of it while reading")


def peer_figures(peer: str, events: Sequence[Reading]) -> Iterator[Figure]:
    reading = best(events)
    most = max(events, key=lambda reading: reading.inversions)
    by = f"at {reading.batch_size:,} a batch"
    disorder = f"{by}; at most {most.inversions:,}, at {most.batch_size:,} a batch"
    yield Figure(f"ordered.{peer}_rows_per_s", reading.rows_per_s, by)
    yield Figure(f"ordered.{peer}_inversions", reading.inversions, disorder)
    yield Figure(f"ordered.{peer}_peak_mb", reading.peak_mb, f"{by}, {reading.growth_mb:.0f} of it while reading")


if __name__ == "__main__":
    chosen, is_quick = parse("bench.ordered", Amounts(), QUICK)
    peers = installed(chosen.peers)
    events = Log("events", chosen.records, "lz4", event)
    blobs = Log("random1k", chosen.records // 10, "none", random_kilobyte)
    with Stack(["kafka"]) as stack:
        address = stack.kafka[0].address
        readings = []
        for log in (events, blobs):
            fill(address, log)
            readings.append(compare(peers, chosen, address, log))
    report(
        f"{events.rows:,} events and {blobs.rows:,} random kilobytes in {PARTITIONS} partitions, from the first to the"
        f" last, best of {chosen.rounds}",
        list(figures(*readings)),
        is_quick=is_quick,
    )
