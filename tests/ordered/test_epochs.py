"""Epochs behind each other are the whole log in order, what is late is told, and every epoch gets on."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.errors import OffsetOutOfRange
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.ordered import OrderedConsumer, Topic
from strandline.ordered.epochs import Epochs, Limits, Position
from strandline.ordered.merge import Part
from strandline.ordered.reading import Loss, Rules
from strandline.stack import KafkaCluster
from tests.ordered.support import Row, create_topic, produce, rows_of
from tests.ordered.test_slices import CEILING, DAY, RULES, bursts, jitter, merged, one_time, skew, stray
from tests.support import TIMEOUT
from tests.topics import add_partitions


@asynccontextmanager
async def epochs_of(address: str, topic: str, rules: Rules = RULES) -> AsyncIterator[tuple[Cluster, Epochs]]:
    cluster = Cluster({"bootstrap.servers": address})
    try:
        yield cluster, Epochs(cluster, [topic], rules)
    finally:
        cluster.close()


async def read_all(address: str, topic: str, limits: Limits, start: Position) -> tuple[list[list[Row]], Position]:
    """Epochs until there is nothing more."""
    found = []
    async with epochs_of(address, topic) as (cluster, epochs):
        while (end := await epochs.next(start, limits, CEILING)) != start:
            assert end.time >= start.time
            parts, losses = await epochs.parts(start, end)
            assert not losses
            found.append(await merged(cluster, parts))
            start = end
    return found, start


@pytest.mark.parametrize(
    ("shape", "limits"),
    [
        *product([jitter, skew, one_time, bursts, stray], [Limits(), Limits(rows=1_700), Limits(bytes=40_000)]),
        *product([jitter, one_time, bursts, stray], [Limits(span=timedelta(seconds=3))]),
        # Its rows are of three quarters of an hour.
        (skew, Limits(span=timedelta(minutes=1))),
    ],
)
def test_epochs_behind_each_other_are_the_whole(
    kafka: KafkaCluster, shape: Callable[[random.Random, int], tuple[int, int]], limits: Limits
) -> None:
    topic = f"epochs-{shape.__name__.replace('_', '-')}-{abs(hash(limits))}"
    chance = random.Random(shape.__name__)
    create_topic(kafka.address, topic, 5, message_timestamp_after_max_ms=str(2**62))
    written = [(*shape(chance, number), f"{number}".encode()) for number in range(8_000)]
    produce(kafka.address, topic, written, **{"batch.num.messages": 300})
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        whole = rows_of(consumer.until_live())
    found, end = asyncio.run(read_all(kafka.address, topic, limits, Position(offsets={})))
    assert [row for epoch in found for row in epoch] == whole
    if limits.rows is not None:
        assert max(map(len, found)) <= limits.rows
    if limits.bytes is not None:
        assert len(found) > 1
    if limits.span is not None and shape in {jitter, skew, bursts}:
        assert len(found) > 1
    assert sum(end.offsets.values()) == 8_000


def test_a_row_that_comes_too_late_is_in_the_next_epoch_and_moves_no_time(kafka: KafkaCluster) -> None:
    topic = "epochs-late"
    create_topic(kafka.address, topic, 2)
    produce(kafka.address, topic, [(0, DAY + n, b"x") for n in range(10)])
    found, first = asyncio.run(read_all(kafka.address, topic, Limits(), Position(offsets={})))
    assert [len(epoch) for epoch in found] == [10]
    assert first.time == DAY + 9
    produce(kafka.address, topic, [(1, DAY + 3, b"late"), (1, DAY + 1, b"later")])
    found, second = asyncio.run(read_all(kafka.address, topic, Limits(), first))
    assert [[row.value for row in epoch] for epoch in found] == [[b"late", b"later"]]
    assert second.time == first.time
    assert [second.reached[p] for p in sorted(second.reached)] == [DAY + 9, DAY + 3]
    produce(kafka.address, topic, [(0, DAY + 2, b"back"), (1, DAY + 20, b"on"), (0, DAY + 15, b"on too")])
    found, third = asyncio.run(read_all(kafka.address, topic, Limits(), second))
    assert [row.value for epoch in found for row in epoch] == [b"back", b"on too", b"on"]
    assert third.time == DAY + 20


def test_a_partition_whose_time_never_rises_holds_nobody(kafka: KafkaCluster) -> None:
    topic = "epochs-microseconds"
    create_topic(kafka.address, topic, 2, message_timestamp_after_max_ms=str(2**62))
    position = Position(offsets={})
    for round_ in range(3):
        far = 1_000 * DAY  # microseconds, by mistake
        produce(kafka.address, topic, [(0, far + round_, b"stray"), (1, DAY + round_, b"row")])
        found, position = asyncio.run(read_all(kafka.address, topic, Limits(), position))
        assert sorted(row.value or b"" for epoch in found for row in epoch) == [b"row", b"stray"]


def test_a_topic_that_was_made_again_is_refused(kafka: KafkaCluster) -> None:
    topic = "epochs-again"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY, b"only")])
    position = Position(offsets={Partition(topic, 0): 1000}, time=DAY)
    with pytest.raises(OffsetOutOfRange, match="epochs-again/0 holds offsets 0 to 1, and 1000 was asked for"):
        asyncio.run(read_all(kafka.address, topic, Limits(), position))


def test_what_was_deleted_before_an_epoch_is_refused_or_named(kafka: KafkaCluster) -> None:
    topic = "epochs-deleted"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY + n, b"x") for n in range(20)])
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (done,) = admin.delete_records([TopicPartition(topic, 0, 12)]).values()
    done.result(TIMEOUT)
    start = Position(offsets={Partition(topic, 0): 5})
    with pytest.raises(OffsetOutOfRange, match="epochs-deleted/0 holds offsets 12 to 20, and 5 was asked for"):
        asyncio.run(read_all(kafka.address, topic, Limits(rows=3), start))

    async def lenient() -> tuple[dict[Partition, Part], list[Loss]]:
        async with epochs_of(kafka.address, topic, replace(RULES, skip_missing=True)) as (_, epochs):
            return await epochs.parts(start, await epochs.next(start, Limits(rows=3), CEILING))

    parts, losses = asyncio.run(lenient())
    assert parts[Partition(topic, 0)].start == 12
    assert [str(loss) for loss in losses] == [f"offsets 5 to 11 of {topic}/0 are lost: the broker has deleted them"]


def test_an_epoch_that_is_read_again_is_the_same_although_its_start_has_moved(kafka: KafkaCluster) -> None:
    topic = "epochs-same"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY + n, b"x") for n in range(10)])

    async def plan() -> list[int]:
        async with epochs_of(kafka.address, topic) as (_, epochs):
            end = await epochs.next(Position(offsets={Partition(topic, 0): 2}), Limits(), CEILING)
            # A query that is killed in its first epoch asks again where to begin, and time has passed.
            parts, _ = await epochs.parts(Position(offsets={Partition(topic, 0): 6}), end)
            return [parts[Partition(topic, 0)].start, parts[Partition(topic, 0)].end]

    assert asyncio.run(plan()) == [2, 10]


def test_partitions_that_are_added_are_read_from_their_start(kafka: KafkaCluster) -> None:
    topic = "epochs-added"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY, b"first")])
    _, first = asyncio.run(read_all(kafka.address, topic, Limits(), Position(offsets={})))
    add_partitions(kafka.settings(), topic, 2)
    produce(kafka.address, topic, [(1, DAY + 5, b"second")])
    found, _ = asyncio.run(read_all(kafka.address, topic, Limits(), first))
    assert [row.value for epoch in found for row in epoch] == [b"second"]
