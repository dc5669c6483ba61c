"""What a group has away from home: offsets at the owners of its topics, for a group without members there.

Kafka keeps offsets while a group has members, and for `offsets.retention.minutes` after that; a group that never has
any loses each offset so long after its commit. To commit it anew would race with a member who commits a later one, and
Kafka has no commit on a condition. But a commit may say for how long it is to be kept, until version 4, so ours do.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.offset_commit.v4.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i8, i32, i64Timedelta

from strandline.errors import BrokerUnreachable, KafkaError
from strandline.proxy.exchange import Realm
from strandline.wire.kafka_frames import answer_type
from strandline.wire.refusal import item_type, refused, refused_part

GROUP = 0
NO_GENERATION = -1
OFFSET_COMMIT = 8
MOST_COORDINATORS = 10_000
COORDINATOR_AGAIN_S = 0.2
# Seen when the coordinator that we knew has moved.
ASK_AGAIN = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})


async def commit_abroad(realm: Realm, cluster: str, request: Any) -> Any:
    """Commit offsets of topics of a cluster where the group is not at home; the answer is in the client's version."""
    lasts = realm.offsets_last
    oldest, _ = realm.clusters[cluster].versions.get(OFFSET_COMMIT, (0, -1))
    # Whose the topics are was found by their names, but one may be gone by now.
    found = (getattr(topic, "name", None) or realm.directory.name_of(topic.topic_id) for topic in request.topics)
    names = [str(name) for name in found if name is not None]
    try:
        if not lasts or oldest > OffsetCommitRequest.__version__ or len(names) < len(request.topics):
            return await at_coordinator(realm, cluster, request.group_id, _of_no_member(request))
        answer = await at_coordinator(realm, cluster, request.group_id, _lasting(request, names, lasts))
    except KafkaError:
        return refused(request, ErrorCode.coordinator_not_available)
    return _as_asked(request, names, answer)


def _of_no_member(request: Any) -> Any:
    given: dict[str, Any] = {}
    if hasattr(request, "generation_id_or_member_epoch"):
        given["generation_id_or_member_epoch"] = i32(NO_GENERATION)
    if hasattr(request, "member_id"):
        given["member_id"] = ""
    if hasattr(request, "group_instance_id"):
        given["group_instance_id"] = None
    return replace(request, **given)


def _lasting(request: Any, names: list[str], lasts: timedelta) -> OffsetCommitRequest:
    """The same commit, to be kept for so long; what a client says itself in an old version holds."""
    own = getattr(request, "retention_time", None)
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=i32(NO_GENERATION),
        member_id="",
        retention_time=own if own is not None and own >= timedelta(0) else i64Timedelta.parse(lasts),
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(name),
                partitions=tuple(
                    OffsetCommitRequestPartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_metadata=partition.committed_metadata,
                    )
                    for partition in topic.partitions
                ),
            )
            for name, topic in zip(names, request.topics, strict=True)
        ),
    )


def _as_asked(request: Any, names: list[str], answer: Any) -> Any:
    """An answer of version 4 as one of the version that the client speaks."""
    codes = {
        (str(topic.name), partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }
    kind = item_type(answer_type(request.__api_key__, request.__version__), "topics")
    item = item_type(kind, "partitions")
    topics = tuple(
        replace(
            refused_part(kind, topic, ErrorCode.none),
            partitions=tuple(
                item(partition_index=partition.partition_index, error_code=codes[name, partition.partition_index])
                for partition in topic.partitions
            ),
        )
        for name, topic in zip(names, request.topics, strict=True)
    )
    return replace(refused(replace(request, topics=()), ErrorCode.none), topics=topics)


async def at_coordinator(realm: Realm, cluster: str, group_id: str, request: Any) -> Any:
    """Ask the coordinator of a group in a cluster, who may have to be found again."""
    known = realm.coordinators
    for _ in range(3):
        node = known.get((cluster, group_id))
        if node is None:
            find = FindCoordinatorRequest(key_type=i8(GROUP), coordinator_keys=(group_id,))
            (found,) = (await realm.clusters[cluster].ask(find)).coordinators
            if found.error_code is not ErrorCode.none:
                await asyncio.sleep(COORDINATOR_AGAIN_S)
                continue
            if len(known) >= MOST_COORDINATORS:
                known.clear()
            node = known[cluster, group_id] = int(found.node_id)
        try:
            answer = await realm.ask(cluster, request, node)
        except KafkaError:
            # It may be gone for good; whoever asks next looks for another.
            known.pop((cluster, group_id), None)
            raise
        if not ASK_AGAIN & set(_codes(answer)):
            return answer
        known.pop((cluster, group_id), None)
    raise BrokerUnreachable(f"cluster {cluster}", f"no coordinator for group {group_id}")


def _codes(answer: Any) -> Iterable[ErrorCode]:
    if hasattr(answer, "error_code"):
        yield answer.error_code
    for group in getattr(answer, "groups", ()):
        yield group.error_code
    for topic in getattr(answer, "topics", ()):
        for partition in topic.partitions:
            yield partition.error_code
