"""What is read of Kafka as it comes: in fair turns, and whatever a cluster does to it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kio.schema.metadata.v11.response import MetadataResponseTopic

from strandline.core.retry import Backoff, Failure
from strandline.errors import KafkaError, Moved
from strandline.gateway import tail as module
from strandline.gateway.hub import Hub
from strandline.gateway.tail import Tail
from strandline.kafka.cluster import Cluster
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from tests.gateway.support import NAMING, create_when_gone, delete, plain, run, serving, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


@asynccontextmanager
async def unread(kafka: KafkaCluster, *topics: str) -> AsyncIterator[Tail]:
    """One that is at the beginning of its topics, and reads nothing yet."""
    tail = Tail({"bootstrap.servers": kafka.address}, dict.fromkeys(topics, NAMING), Hub(), recent_bytes=64 << 20)
    for partition in await tail.cluster.partitions(topics):
        tail._add(partition, 0)
    try:
        yield tail
    finally:
        await tail.stop()


def test_two_who_read_of_the_leaders_before_and_after_a_move_pass_over_what_was_deleted_once(
    kafka: KafkaCluster, topic: str
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(10)])
    delete(kafka.address, topic, 8)

    async def test() -> None:
        async with unread(kafka, topic) as tail:
            (feed,) = tail._hub.feeds.values()
            await asyncio.gather(tail._pass_over(feed), tail._pass_over(feed))
            assert feed.end == 8
            assert len(feed.recent.since(0, 10)[0]) == 1

    run(test)


def test_a_partition_that_is_gone_while_others_are_looked_at_is_no_failure(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with unread(kafka, topic) as tail:
            (partition,) = tail._hub.feeds
            del tail._hub.feeds[partition]
            assert await tail._check(partition)

    run(test)


def test_a_partition_that_always_has_much_keeps_no_other_waiting(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The same topic has one before it and one behind it, so that their order counts and not that of the topics.
    busy = f"a-{topic}"
    create_topic(kafka.address, busy, 3)
    producer = Producer({"bootstrap.servers": kafka.address, "batch.num.messages": 1})
    for _ in range(100):
        producer.produce(busy, "x" * 10_000, key="a", partition=1)
    assert producer.flush(TIMEOUT) == 0
    write(kafka.address, busy, [(2, "a", "last")])
    write(kafka.address, topic, [(0, "a", "another topic's")])
    monkeypatch.setattr(module, "FETCH_BYTES", 10_000)
    ends: list[dict[str, int]] = []

    async def test() -> None:
        async with unread(kafka, busy, topic) as tail:
            came = tail._hub.came

            def noted(*read: object) -> None:
                came(*read)  # type: ignore[arg-type]
                ends.append({str(partition): feed.end for partition, feed in tail._hub.feeds.items()})

            monkeypatch.setattr(tail._hub, "came", noted)
            tail._read_from_all()
            while len(ends) < 102:
                await asyncio.sleep(0.01)
        assert ends[2] == {f"{busy}/0": 0, f"{busy}/1": 1, f"{busy}/2": 1, f"{topic}/0": 1}

    run(test)


def test_a_topic_that_is_deleted_does_not_slow_the_others_down(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = f"a-{topic}"
    create_topic(kafka.address, deleted)
    # Whoever waited before it reads on would wait for longer than the test may take.
    late = {Failure.TRANSIENT: Backoff(first=Nanos(10**12), ceiling=Nanos(10**12))}
    monkeypatch.setattr(module, "FOREVER", replace(module.FOREVER, backoff=late))

    async def test() -> None:
        async with serving(kafka.address, [deleted, topic]) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            admin = AdminClient({"bootstrap.servers": kafka.address})
            admin.delete_topics([deleted])[deleted].result(TIMEOUT)
            while not gateway.not_ready():
                await asyncio.sleep(0.01)
            for number in range(3):
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", number)])
                assert (await client.records(1))[0]["data"] == number
            assert gateway.not_ready()
            monkeypatch.undo()
            # It comes back when there is one of its name.
            await asyncio.to_thread(create_when_gone, kafka.address, deleted)
            assert (await client.until("gap"))[-1]["reason"] == "recreated"
            await asyncio.to_thread(write, kafka.address, deleted, [(0, "a", "anew")])
            assert (await client.records(1))[0]["data"] == "anew"

    run(test)


def test_a_broker_that_speaks_of_a_topic_that_is_no_more_takes_nobody_back_to_it(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(3)])
    learn = Cluster._learn

    def learn_of_another(cluster: Cluster, told: MetadataResponseTopic) -> KafkaError | None:
        return learn(cluster, replace(told, topic_id=another))

    another = uuid4()

    async def test() -> None:
        async with unread(kafka, topic) as tail:
            (feed,) = tail._hub.feeds.values()
            monkeypatch.setattr(Cluster, "_learn", learn_of_another)
            monkeypatch.setattr(module, "PATIENCE", timedelta(milliseconds=50))
            with pytest.raises(Moved, match="unknown_topic_id"):
                await tail._renew()
            monkeypatch.undo()
            await tail._renew()
            assert [*tail._hub.feeds.values()] == [feed]
            async with asyncio.timeout(TIMEOUT):
                while feed.end < 3:
                    await asyncio.sleep(0.01)

    run(test)


def test_a_topic_made_anew_while_its_ends_are_asked_for_is_read_from_where_it_ends_itself(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(3)])
    offsets = Cluster.offsets
    admin = AdminClient({"bootstrap.servers": kafka.address})

    async def offsets_when_made_anew(cluster: Cluster, *asked: Any) -> Any:
        monkeypatch.undo()
        admin.delete_topics([topic])[topic].result(TIMEOUT)
        await asyncio.to_thread(create_when_gone, kafka.address, topic)
        await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 0)])
        return await offsets(cluster, *asked)

    async def test() -> None:
        tail = Tail({"bootstrap.servers": kafka.address}, {topic: NAMING}, Hub(), recent_bytes=64 << 20)
        monkeypatch.setattr(Cluster, "offsets", offsets_when_made_anew)
        try:
            await tail.start()
            now = Cluster({"bootstrap.servers": kafka.address})
            await now.partitions([topic])
            now.close()
            (feed,) = tail._hub.feeds.values()
            assert (feed.topic_id, feed.end) == (now.topic_id(topic), 1)
        finally:
            await tail.stop()

    run(test)
