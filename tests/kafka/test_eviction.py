"""A member that is dead is put out of its group at once."""

import asyncio
import secrets
from datetime import timedelta

import pytest

from strandline.errors import BrokerUnreachable
from strandline.kafka.events import Assigned, Event, Lost, Revoked
from strandline.kafka.eviction import evict
from strandline.kafka.group import GroupMember
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


async def next_of(member: GroupMember, *kinds: type[Event]) -> Event:
    async with asyncio.timeout(TIMEOUT):
        while not isinstance(event := await member.next(), kinds):
            if isinstance(event, Revoked):
                event.release()
        return event


def test_a_member_that_is_evicted_loses_its_partitions_and_one_that_is_gone_is_no_error(kafka: KafkaCluster) -> None:
    topic = f"evicted-{secrets.token_hex(4)}"
    create_topic(kafka.address, topic, 1)
    settings: dict[str, object] = {"bootstrap.servers": kafka.address, "group.id": topic, "heartbeat.interval.ms": 300}

    async def main() -> None:
        one = GroupMember(settings, [topic])
        await one.start()
        try:
            await next_of(one, Assigned)
            first = one.id
            assert first
            await evict(settings, first)
            await next_of(one, Lost)
            await next_of(one, Assigned)
            assert one.id != first
            await evict(settings, first)
            await evict(settings, "nobody")
        finally:
            await one.stop(timedelta(seconds=10))

    asyncio.run(main())


def test_brokers_that_do_not_answer_are_named() -> None:
    with pytest.raises(BrokerUnreachable, match=r"no broker answers"):
        asyncio.run(evict({"bootstrap.servers": "127.0.0.1:1,127.0.0.1:2", "group.id": "g"}, "m"))
