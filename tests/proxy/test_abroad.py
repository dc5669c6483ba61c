"""A commit away from home says how long it is kept, whatever version the client speaks, and is answered in that one."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64, i64Timedelta

from strandline.errors import BrokerUnreachable
from strandline.proxy.cluster import ANY
from strandline.proxy.rules.abroad import OFFSET_COMMIT, commit_abroad
from strandline.wire.kafka_frames import answer_type, request_type, versions_known
from strandline.wire.refusal import item_type, refused

NAMES = {UUID(int=1): "eu.a", UUID(int=2): "eu.b"}
OLDEST_WITH_IDS = 10
FIND_COORDINATOR = 10
YEAR = timedelta(days=365)


class West:
    """A cluster that takes every commit but that of one partition."""

    def __init__(self) -> None:
        self.versions = {OFFSET_COMMIT: (2, 10)}
        self.asked: list[Any] = []

    async def ask(self, request: Any, node: int) -> Any:
        self.asked.append(request)
        answer = refused(request, ErrorCode.none)
        partition = answer.topics[1].partitions[0]
        object.__setattr__(partition, "error_code", ErrorCode.offset_metadata_too_large)
        return answer


def realm(west: West, lasts: timedelta) -> Any:
    async def ask(cluster: str, request: Any, node: int) -> Any:
        assert cluster == "west"
        return await west.ask(request, node)

    return SimpleNamespace(
        clusters={"west": west},
        coordinators={("west", "g"): 1},
        directory=SimpleNamespace(name_of=NAMES.get),
        offsets_last=lasts,
        ask=ask,
    )


def commit(version: int, **more: Any) -> Any:
    """Offsets of two topics, of two partitions each."""
    kind: Any = request_type(OFFSET_COMMIT, version)
    topic = item_type(kind, "topics")
    partition = item_type(topic, "partitions")
    partitions = tuple(
        partition(partition_index=i32(n), committed_offset=i64(10 + n), committed_metadata=f"m{n}") for n in range(2)
    )
    topics = tuple(
        topic(**({"topic_id": key} if version >= OLDEST_WITH_IDS else {"name": name}), partitions=partitions)
        for key, name in NAMES.items()
    )
    return kind(group_id="g", generation_id_or_member_epoch=i32(5), member_id="m", topics=topics, **more)


async def committed(west: West, request: Any, lasts: timedelta = YEAR) -> Any:
    return await commit_abroad(realm(west, lasts), "west", request)


@pytest.mark.parametrize("version", versions_known(OFFSET_COMMIT))
def test_every_version_of_a_commit_is_kept_for_as_long_and_answered_in_its_own(version: int) -> None:
    west, request = West(), commit(version)
    answer = asyncio.run(committed(west, request))
    (asked,) = west.asked
    assert asked.retention_time == YEAR
    assert (asked.member_id, asked.generation_id_or_member_epoch) == ("", -1)
    assert [topic.name for topic in asked.topics] == list(NAMES.values())
    assert [(p.partition_index, p.committed_offset, p.committed_metadata) for p in asked.topics[0].partitions] == [
        (0, 10, "m0"),
        (1, 11, "m1"),
    ]
    assert type(answer) is answer_type(OFFSET_COMMIT, version)
    known = [getattr(topic, "topic_id", None) or topic.name for topic in answer.topics]
    assert known == list(NAMES if version >= OLDEST_WITH_IDS else NAMES.values())
    codes = [[partition.error_code for partition in topic.partitions] for topic in answer.topics]
    assert codes == [[ErrorCode.none] * 2, [ErrorCode.offset_metadata_too_large, ErrorCode.none]]


def test_what_an_old_client_says_itself_holds() -> None:
    west = West()
    asyncio.run(committed(west, commit(4, retention_time=i64Timedelta.parse(timedelta(hours=1)))))
    assert west.asked[0].retention_time == timedelta(hours=1)


def test_without_days_the_owner_decides_and_is_told_the_epoch() -> None:
    west, request = West(), commit(9)
    asyncio.run(committed(west, request, timedelta(0)))
    assert type(west.asked[0]) is type(request)
    assert west.asked[0].topics == request.topics
    assert west.asked[0].member_id == ""


def test_a_coordinator_that_does_not_answer_is_looked_for_anew() -> None:
    class Moved(West):
        """The coordinator that was known is gone; there is another."""

        async def ask(self, request: Any, node: int = ANY) -> Any:
            if node == ANY:
                kind = item_type(answer_type(FIND_COORDINATOR, 4), "coordinators")
                found = kind(
                    key="g", node_id=BrokerId(2), host="h", port=i32(1), error_code=ErrorCode.none, error_message=None
                )
                return replace(refused(replace(request, coordinator_keys=()), ErrorCode.none), coordinators=(found,))
            if node == 1:
                raise BrokerUnreachable("west broker 1", "it has left the cluster")
            return await super().ask(request, node)

    async def commits() -> list[set[ErrorCode]]:
        known = realm(Moved(), YEAR)
        answers = [await commit_abroad(known, "west", commit(9)) for _ in range(2)]
        assert known.coordinators == {("west", "g"): 2}
        return [{p.error_code for topic in one.topics for p in topic.partitions} for one in answers]

    assert asyncio.run(commits()) == [
        {ErrorCode.coordinator_not_available},
        {ErrorCode.none, ErrorCode.offset_metadata_too_large},
    ]
