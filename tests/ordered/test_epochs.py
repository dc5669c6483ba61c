"""Epochs behind each other are the whole log in order, what is late is told, and every epoch gets on."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from strandline.kafka.cluster import Cluster
from strandline.ordered import OrderedConsumer, Topic
from strandline.ordered.epochs import Epochs, Limits, Position
from strandline.stack import KafkaCluster
from tests.ordered.support import Row, create_topic, produce, rows_of
from tests.ordered.test_slices import CEILING, DAY, RULES, bursts, jitter, merged, one_time, skew, stray
from tests.support import wait_for


@asynccontextmanager
async def epochs_of(address: str, topic: str) -> AsyncIterator[tuple[Cluster, Epochs]]:
    cluster = Cluster({"bootstrap.servers": address})
    try:
        yield cluster, Epochs(cluster, [topic], RULES)
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


@pytest.mark.parametrize("shape", [jitter, skew, one_time, bursts, stray])
@pytest.mark.parametrize(
    "limits", [Limits(), Limits(rows=1_700), Limits(bytes=150_000), Limits(span=timedelta(milliseconds=3_000))]
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


def test_partitions_that_are_added_are_read_from_their_start(kafka: KafkaCluster) -> None:
    topic = "epochs-added"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY, b"first")])
    _, first = asyncio.run(read_all(kafka.address, topic, Limits(), Position(offsets={})))
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_for(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 2, "the partition is there")
    produce(kafka.address, topic, [(1, DAY + 5, b"second")])
    found, _ = asyncio.run(read_all(kafka.address, topic, Limits(), first))
    assert [row.value for epoch in found for row in epoch] == [b"second"]
