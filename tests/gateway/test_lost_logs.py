"""Logs that are not what they were: cut back by an unclean election, or made anew. What is lost is told exactly."""

import asyncio
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.core.gap import Gap, Reason
from strandline.errors import TopicReplaced
from strandline.gateway.feed import Feed
from strandline.gateway.history import History
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster, Stack
from strandline.wire.resume_token import Position
from tests.gateway.support import NAMING, Heard, create_when_gone, plain, reached, run, serving, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT
from tests.topics import add_partitions, create_topics


@pytest.fixture
def three() -> Iterator[KafkaCluster]:
    """A cluster whose first node only controls: the other two can be stopped."""
    with Stack(["kafka"], kafka_brokers=3) as stack:
        yield stack.kafka[0]


def _stop(cluster: KafkaCluster, node: int) -> None:
    cluster.brokers[node - 1].stop(signal.SIGTERM, TIMEOUT)


def _gap(heard: list[Heard]) -> tuple[str, int, int | None]:
    (gap,) = [message for message in heard if message["type"] == "gap"]
    return gap["reason"], gap["from"], gap["to"]


def test_what_an_unclean_election_has_lost_is_told_to_who_was_there_and_to_who_comes_back(three: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    how = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    create_topics(three.settings(), NewTopic(topic, 1, replica_assignment=[[2, 3]], config=how))
    write(three.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(three.address, [topic], token_every_s=0.2) as gateway, plain(gateway) as live:
            await live.say("subscribe", channels=["a"])
            await live.until("subscribed")
            # Only the leader has the next five.
            await asyncio.to_thread(_stop, three, 3)
            await asyncio.to_thread(write, three.address, topic, [(0, "a", n) for n in range(5, 10)])
            assert [message["offset"] for message in await live.records(5)] == [5, 6, 7, 8, 9]
            token = (await live.until("token"))[-1]["token"]
            await asyncio.to_thread(write, three.address, topic, [(0, "a", n) for n in (10, 11)])
            await live.records(2)
            await asyncio.to_thread(_stop, three, 2)
            three.brokers[2].start()
            await asyncio.to_thread(write, three.address, topic, [(0, "a", 100 + n) for n in range(10)])
            heard = await live.until("gap")
            assert _gap(heard) == ("truncated", 5, 11)
            assert [(message["offset"], message["data"]) for message in await live.records(10)] == [
                (5 + n, 100 + n) for n in range(10)
            ]
            # By its token alone, and as one that has seen two more since.
            for more, last in (({}, 9), ({"positions": {topic: {"0": 12}}}, 11)):
                async with plain(gateway) as back:
                    await back.say("resume", channels=["a"], token=token, **more)
                    heard = await back.until("resume_ack")
                    assert _gap(heard) == ("truncated", 5, last)
                    assert [message["data"] for message in heard if "offset" in message] == list(range(100, 110))

    run(test)


def test_what_is_cold_of_a_topic_made_anew_and_of_a_partition_added_since_is_what_they_have_now(
    kafka: KafkaCluster,
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(50)])
    admin = AdminClient({"bootstrap.servers": kafka.address})

    async def test() -> None:
        limits = {"cold_every_s": 0.001}
        async with serving(kafka.address, [topic], recent_bytes=1024, limits=limits) as gateway:

            async def cold(place: dict[str, int], count: int) -> list[int]:
                async with plain(gateway) as client:
                    await client.say("resume", channels=["a"], positions={topic: place}, credit=1000)
                    heard = await client.until("resume_ack", "error")
                    if heard[-1]["type"] == "error":
                        assert heard[-1]["retry_after"] > 0
                        return []
                    found = [message["data"] for message in heard if "offset" in message]
                    assert len(found) == count
                    return found

            assert await cold({"0": 0}, 50) == list(range(50))
            before = gateway.hub.topics()[topic][0]
            admin.delete_topics([topic])[topic].result(TIMEOUT)
            await asyncio.to_thread(create_when_gone, kafka.address, topic)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 100 + n) for n in range(60)])
            while gateway.hub.topics()[topic][0] is before:
                await asyncio.sleep(0.02)
            await asyncio.to_thread(add_partitions, kafka.settings(), topic, 2)
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", 200 + n) for n in range(60)])
            await reached(gateway, 120)
            # The first who asks may be told to come again: it finds out.
            found: list[int] = []
            while not found:
                found = await cold({"0": 0, "1": 0}, 120)
            assert sorted(found) == [*range(100, 160), *range(200, 260)]

    run(test)


@pytest.mark.parametrize("epoch", [None, 0])
def test_what_a_topic_made_anew_has_says_nothing_of_the_one_before_it(kafka: KafkaCluster, epoch: int | None) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(20)])
    admin = AdminClient({"bootstrap.servers": kafka.address})

    async def test() -> None:
        settings = {"bootstrap.servers": kafka.address}
        first, second = (History(settings, [topic], most_bytes=1 << 20) for _ in range(2))
        now = Cluster(settings)
        try:
            await first.start()
            await second.start()
            # The process has not come as far as the client, which one before it had served.
            old = Feed(Partition(topic, 0), first._cluster.topic_id(topic), NAMING, 10, most_bytes=1 << 20)
            place = Position(20, old.topic_id, epoch)
            assert await first.begin(old, place) == (20, [])
            admin.delete_topics([topic])[topic].result(TIMEOUT)
            await asyncio.to_thread(create_when_gone, kafka.address, topic)
            for _ in range(2):  # also when it has learned of the new one
                with pytest.raises(TopicReplaced):
                    await first.begin(old, place)
            # Who is behind the one that reads the new topic learns of it, and sends nobody away.
            await now.partitions([topic])
            new = Feed(old.partition, now.topic_id(topic), NAMING, 0, most_bytes=1 << 20)
            assert await second.begin(new, place) == (0, [Gap(20, 20, Reason.RECREATED)])
        finally:
            for one in (first, second, now):
                one.close()

    run(test)
