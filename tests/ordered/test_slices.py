"""Slices of a log, each merged on its own and put behind each other, are the merge of the whole."""

import asyncio
import random
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from strandline.clock import SystemClock
from strandline.kafka.cluster import EARLIEST, LATEST, Cluster, Isolation
from strandline.kafka.partition import Partition
from strandline.ordered import OrderedConsumer, Topic
from strandline.ordered.merge import Merge, Part, sliced
from strandline.ordered.reading import Rules
from strandline.ordered.slices import Slicer
from strandline.stack import KafkaCluster
from tests.ordered.support import OPEN_FOR_LONG, Row, create_topic, inversions, produce, rows_of, stable_end
from tests.support import TIMEOUT, wait_for

DAY = 1_767_225_600_000
CEILING = 2_000_000_000_000
FAR_AHEAD = 32_503_680_000_000
RULES = Rules(Isolation.READ_COMMITTED, skip_corrupt=False, skip_missing=False)


def jitter(chance: random.Random, number: int) -> tuple[int, int]:
    return chance.randrange(4), DAY + number + chance.randrange(-300, 300)


def skew(chance: random.Random, number: int) -> tuple[int, int]:
    return (0 if chance.random() < 0.9 else chance.randrange(1, 4)), DAY + number // 3 * 1000


def one_time(chance: random.Random, number: int) -> tuple[int, int]:
    return chance.randrange(4), DAY if 1_000 < number < 15_000 else DAY + number - 1_000


def bursts(chance: random.Random, number: int) -> tuple[int, int]:
    return number // 500 % 4, DAY + number // 2_000 * 3_600_000 + number % 7


def stray(chance: random.Random, number: int) -> tuple[int, int]:
    return number % 4, FAR_AHEAD if number == 50 else DAY + number


async def in_slices(address: str, topic: str, slices: int) -> tuple[list[Row], list[int]]:
    cluster = Cluster({"bootstrap.servers": address})
    try:
        partitions = await cluster.partitions([topic])
        starts = await cluster.offsets(dict.fromkeys(partitions, EARLIEST), RULES.isolation)
        ends = await cluster.offsets(dict.fromkeys(partitions, LATEST), RULES.isolation)
        parts = {p: Part(start=starts[p].offset, end=ends[p].offset) for p in partitions}
        cuts = await Slicer(cluster, parts, RULES, CEILING).cut(slices)
        found: list[Row] = []
        sizes = []
        for slice_ in sliced(parts, cuts):
            rows = await merged(cluster, slice_)
            sizes.append(len(rows))
            found += rows
        return found, sizes
    finally:
        cluster.close()


async def merged(cluster: Cluster, parts: dict[Partition, Part]) -> list[Row]:
    merge = Merge(cluster, parts, RULES, SystemClock(), ceiling=CEILING, buffer_bytes=64 << 20)
    try:
        batches = []
        while not merge.ordering.is_drained:
            batches.append(await merge.poll(10_000, TIMEOUT))
        return rows_of(batches)
    finally:
        await merge.close()


@pytest.mark.parametrize("shape", [jitter, skew, one_time, bursts, stray])
def test_slices_behind_each_other_are_the_whole(
    kafka: KafkaCluster, shape: Callable[[random.Random, int], tuple[int, int]]
) -> None:
    topic = f"slices-{shape.__name__.replace('_', '-')}"
    chance = random.Random(shape.__name__)
    create_topic(kafka.address, topic, 5, message_timestamp_after_max_ms=str(2**62))
    written = [(*shape(chance, number), f"{number}".encode()) for number in range(20_000)]
    produce(kafka.address, topic, written, **{"batch.num.messages": 300})
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        whole = rows_of(consumer.until_live())
    assert len(whole) == 20_000
    for slices in (1, 3, 8):
        rows, sizes = asyncio.run(in_slices(kafka.address, topic, slices))
        assert rows == whole
        assert len(sizes) == slices
        assert max(sizes) <= 1.2 * 20_000 / slices, "not balanced"
    if shape is not stray:
        assert inversions(whole) == 0


def test_transactions_are_sliced_as_they_are_merged(kafka: KafkaCluster) -> None:
    topic = "slices-transactions"
    create_topic(kafka.address, topic, 2)
    how = {"transactional.id": topic, "linger.ms": 0, **OPEN_FOR_LONG}
    producer = Producer({"bootstrap.servers": kafka.address, **how})
    producer.init_transactions(TIMEOUT)
    for round_ in range(40):
        producer.begin_transaction()
        for number in range(50):
            stamp = DAY + round_ * 100 + number + (5_000_000 if round_ % 4 == 1 else 0)
            producer.produce(topic, b"x", partition=number % 2, timestamp=stamp)
        assert producer.flush(TIMEOUT) == 0
        # Those far ahead are all aborted: a broker finds them by time, a reader never sees them.
        (producer.abort_transaction if round_ % 4 == 1 else producer.commit_transaction)(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1, timestamp=DAY + 99_000)
    assert producer.flush(TIMEOUT) == 0
    wait_for(
        lambda: [stable_end(kafka.address, topic, partition) for partition in range(2)] == [40 * 26] * 2,
        "the markers are written",
    )
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        whole = rows_of(consumer.until_live())
    assert len(whole) == 30 * 50
    for slices in (2, 7):
        rows, _ = asyncio.run(in_slices(kafka.address, topic, slices))
        assert rows == whole
    producer.abort_transaction(TIMEOUT)


def test_an_empty_log_has_no_slices(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "slices-empty", 3)
    assert asyncio.run(in_slices(kafka.address, "slices-empty", 4)) == ([], [])
