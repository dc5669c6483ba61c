"""aiokafka through the proxy: writing, groups over both clusters, transactions, and what an administrator does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import Proxied
from tests.support import TIMEOUT
from tests.topics import wait_until_served

Clusters = tuple[KafkaCluster, KafkaCluster]
Given = ParamSpec("Given")
ASSIGNORS = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)


def in_a_loop(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def administrator(address: str) -> AsyncIterator[Any]:
    """Their client for administrators."""
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(address: str, topics: dict[str, int]) -> None:
    async with administrator(address) as admin:
        answer = await admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()])
        assert {error[1] for error in answer.topic_errors} == {0}, answer
    await asyncio.to_thread(wait_until_served, {"bootstrap.servers": address}, topics)


async def write(address: str, records: Iterable[tuple[str, str]], **options: Any) -> None:
    """Write values, and wait until all are acknowledged."""
    async with AIOKafkaProducer(bootstrap_servers=address, **options) as producer:
        sent = [await producer.send(topic, value.encode(), key=value.encode()) for topic, value in records]
        await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT)


def consumer_of(address: str, *topics: str, **options: Any) -> Any:
    known = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "bootstrap_servers": address}
    return AIOKafkaConsumer(*topics, **{**known, **options})


async def take(consumer: Any, count: int) -> Counter[str]:
    """So many records of a consumer."""
    found: Counter[str] = Counter()
    async with asyncio.timeout(TIMEOUT):
        while found.total() < count:
            batches = await consumer.getmany(timeout_ms=200)
            found += Counter(one.value.decode() for batch in batches.values() for one in batch)
    return found


@in_a_loop
async def test_producers_write_to_both_clusters_and_nothing_is_lost(proxy: Proxied, clusters: Clusters) -> None:
    await create(proxy.address, {"ai-both": 3, "eu.ai-both": 2})
    written = [("ai-both" if n % 2 else "eu.ai-both", f"{n}") for n in range(400)]
    await write(proxy.address, written[:200], enable_idempotence=True)
    await write(proxy.address, written[200:300], acks=1)
    await write(proxy.address, written[300:], acks=0)
    async with consumer_of(proxy.address, "ai-both", "eu.ai-both") as consumer:
        assert await take(consumer, 400) == Counter(value for _, value in written)
    for cluster, topic in zip(clusters, ("ai-both", "eu.ai-both"), strict=True):
        async with consumer_of(cluster.address, topic) as consumer:
            assert await take(consumer, 200) == Counter(value for name, value in written if name == topic)


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
@in_a_loop
async def test_a_group_over_both_clusters_shares_out_all_partitions_and_goes_on_where_it_was(
    proxy: Proxied, assignor: Any
) -> None:
    topics = [f"ai-{assignor.name}", f"eu.ai-{assignor.name}"]
    await create(proxy.address, dict.fromkeys(topics, 2))
    await write(proxy.address, [(topics[n % 2], f"{n}") for n in range(100)])
    options: dict[str, Any] = {"group_id": f"ai-{assignor.name}", "heartbeat_interval_ms": 200}
    options["partition_assignment_strategy"] = [assignor]
    everything = sorted(TopicPartition(topic, n) for topic in topics for n in range(2))
    async with consumer_of(proxy.address, *topics, **options) as first:
        assert await take(first, 100) == Counter(f"{n}" for n in range(100))
        await first.commit()
        async with consumer_of(proxy.address, *topics, **options) as second, asyncio.timeout(TIMEOUT):
            held: list[frozenset[TopicPartition]] = []
            while not all(held) or sorted(place for one in held for place in one) != everything:
                for consumer in (first, second):
                    await consumer.getmany(timeout_ms=50)
                held = [first.assignment(), second.assignment()]
    await write(proxy.address, [(topics[n % 2], f"{n}") for n in range(100, 110)])
    async with consumer_of(proxy.address, *topics, **options) as again:
        assert await take(again, 10) == Counter(f"{n}" for n in range(100, 110))
        assert all([await again.committed(place) for place in everything])


@in_a_loop
async def test_a_consumer_seeks_in_both_clusters(proxy: Proxied) -> None:
    await create(proxy.address, {"ai-seek": 1, "eu.ai-seek": 1})
    await write(proxy.address, [(topic, f"{topic}-{n}") for n in range(5) for topic in ("ai-seek", "eu.ai-seek")])
    places = [TopicPartition("ai-seek", 0), TopicPartition("eu.ai-seek", 0)]
    async with consumer_of(proxy.address, group_id="ai-seek") as consumer:
        consumer.assign(places)
        assert await consumer.beginning_offsets(places) == dict.fromkeys(places, 0)
        assert await consumer.end_offsets(places) == dict.fromkeys(places, 5)
        found = await consumer.offsets_for_times(dict.fromkeys(places, 0))
        assert {place: one.offset for place, one in found.items()} == dict.fromkeys(places, 0)
        for place in places:
            consumer.seek(place, 3)
        assert await take(consumer, 4) == Counter(f"{place.topic}-{n}" for place in places for n in (3, 4))
        await consumer.seek_to_beginning()
        assert (await take(consumer, 10)).total() == 10
        await consumer.commit()
        assert [await consumer.committed(place) for place in places] == [5, 5]


@pytest.mark.parametrize(("name", "topic"), [("us-ai", "ai-txn"), ("eu-ai", "eu.ai-txn")])
@in_a_loop
async def test_a_transaction_is_read_when_it_is_committed_and_its_offsets_with_it(
    proxy: Proxied, name: str, topic: str
) -> None:
    await create(proxy.address, {topic: 1})
    place, group = TopicPartition(topic, 0), f"{name}-group"
    async with AIOKafkaProducer(bootstrap_servers=proxy.address, transactional_id=name) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"committed")
            await producer.send_offsets_to_transaction({place: 1}, group)
    async with consumer_of(proxy.address, topic, isolation_level="read_committed") as consumer:
        assert await take(consumer, 1) == Counter(["committed"])
    async with administrator(proxy.address) as admin, asyncio.timeout(TIMEOUT):
        # The coordinator of the group hears of the commit after the producer has.
        while (offset := (await admin.list_consumer_group_offsets(group)).get(place)) is None or offset.offset < 0:
            await asyncio.sleep(0.05)
        assert offset.offset == 1


@in_a_loop
async def test_a_transaction_that_touches_another_cluster_fails(
    proxy: Proxied, caplog: pytest.LogCaptureFixture
) -> None:
    await create(proxy.address, {"eu.ai-touch": 1})
    async with AIOKafkaProducer(bootstrap_servers=proxy.address, transactional_id="us-ai-touch") as producer:
        await producer.begin_transaction()
        with pytest.raises(KafkaError) as failure:
            await asyncio.wait_for(producer.send_and_wait("eu.ai-touch", b"abroad"), TIMEOUT)
        # It may tell its users that something was wrong, and what only in its log.
        assert "InvalidTxnState" in f"{failure.value!r} {caplog.text}"


@in_a_loop
async def test_an_administrator_sees_one_cluster(proxy: Proxied) -> None:
    topics = ["ai-adm", "eu.ai-adm"]
    await create(proxy.address, dict.fromkeys(topics, 1))
    await write(proxy.address, [(topic, f"{n}") for n in range(4) for topic in topics])
    async with administrator(proxy.address) as admin, asyncio.timeout(TIMEOUT):
        assert set(topics) <= set(await admin.list_topics())
        assert {node["node_id"] for node in (await admin.describe_cluster())["brokers"]} == {1, 1_000_001}
        await admin.create_partitions({"eu.ai-adm": NewPartitions(3)})
        await asyncio.to_thread(wait_until_served, proxy.settings(), {"eu.ai-adm": 3})
        assert len((await admin.describe_topics(["eu.ai-adm"]))[0]["partitions"]) == 3
        topic = ConfigResource(ConfigResourceType.TOPIC, "eu.ai-adm", {"retention.ms": "1234567"})
        await admin.alter_configs([topic])
        broker = ConfigResource(ConfigResourceType.BROKER, "1000001")

        async def configured() -> tuple[str, str]:
            shown = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, "eu.ai-adm"), broker])
            found = {one[3]: {entry[0]: entry[1] for entry in one[4]} for answer in shown for one in answer.resources}
            return found["eu.ai-adm"]["retention.ms"], found["1000001"]["node.id"]

        # The controller answers before the broker knows of it.
        while await configured() != ("1234567", "1"):
            await asyncio.sleep(0.05)
        gone = {TopicPartition(name, 0): RecordsToDelete(2) for name in topics}
        assert await admin.delete_records(gone) == dict.fromkeys(gone, 2)
        await admin.delete_topics(topics)
        while set(topics) & set(await admin.list_topics()):
            await asyncio.sleep(0.05)


@in_a_loop
async def test_a_group_over_both_clusters_is_shown_once_with_all_its_offsets(proxy: Proxied) -> None:
    topics = ["ai-group", "eu.ai-group"]
    await create(proxy.address, dict.fromkeys(topics, 1))
    await write(proxy.address, [(topic, f"{n}") for n in range(4) for topic in topics])
    async with consumer_of(proxy.address, *topics, group_id="ai-group") as consumer:
        await take(consumer, 8)
        await consumer.commit()
    async with administrator(proxy.address) as admin:
        assert [one[0] for one in await admin.list_consumer_groups()].count("ai-group") == 1
        (described,) = await admin.describe_consumer_groups(["ai-group"])
        assert described.groups[0][2] == "Empty"
        offsets = await admin.list_consumer_group_offsets("ai-group")
        assert {place.topic: one.offset for place, one in offsets.items()} == dict.fromkeys(topics, 4)
