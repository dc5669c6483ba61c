"""Answers to Metadata, put together from topics that were encoded once: writing one anew takes milliseconds."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from io import BytesIO
from typing import Any

from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponseTopic
from kio.schema.types import TopicName
from kio.serial import entity_writer
from kio.static.primitive import i32

from strandline.wire.kafka_frames import SIZE, answer_type, encode_answer

METADATA = 3
NOT_TOLD = i32(-(1 << 31))
"""In place of authorised operations that were not asked for."""
FLEXIBLE = 9
MAY_BE_NAMELESS = 12
# How many bytes stand behind the topics: authorised operations of the cluster, an error, tags.
BEHIND_TOPICS = {8: 4, 9: 5, 10: 5, 11: 1, 12: 1, 13: 3}


def encoded(topic: MetadataResponseTopic, version: int) -> bytes:
    """A topic as it stands in an answer of a version."""
    kind = _topic_type(version)
    if topic.name is None and version < MAY_BE_NAMELESS:
        topic = replace(topic, name=TopicName(""))
    out = BytesIO()
    entity_writer(kind)(out, _as(topic, kind))
    return out.getvalue()


def assembled(
    version: int, correlation_id: int, around: MetadataResponse, topics: Sequence[bytes], operations: i32 = NOT_TOLD
) -> bytes:
    """An answer with topics that are encoded, and everything else from `around`; some versions tell operations."""
    given = {"topics": (), "cluster_authorized_operations": operations}
    frame = encode_answer(_as(around, answer_type(METADATA, version), **given), correlation_id)
    behind = len(frame) - BEHIND_TOPICS.get(version, 0)
    count = _uvarint(len(topics) + 1) if version >= FLEXIBLE else SIZE.pack(len(topics))
    before = behind - (1 if version >= FLEXIBLE else SIZE.size)
    whole = b"".join((frame[:before], count, *topics, frame[behind:]))
    return SIZE.pack(len(whole) - SIZE.size) + whole[SIZE.size :]


@cache
def _topic_type(version: int) -> Any:
    return _item(answer_type(METADATA, version), "topics")


@cache
def _item(kind: Any, field: str) -> Any:
    """The type of what stands in a field of many."""
    hint = kind.__annotations__[field]
    return hint.__args__[0]


def _as(entity: Any, kind: Any, **given: Any) -> Any:
    """What an entity of one version is in another one: fields that it does not have there are left out."""
    values = {}
    for each in fields(kind):
        if each.name in given:
            values[each.name] = given[each.name]
        elif hasattr(entity, each.name):
            value = getattr(entity, each.name)
            if isinstance(value, tuple) and value and hasattr(value[0], "__version__"):
                item = _item(kind, each.name)
                value = tuple(_as(one, item) for one in value)
            values[each.name] = value
    return kind(**values)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def by_name(topics: Iterable[MetadataResponseTopic]) -> dict[str, MetadataResponseTopic]:
    """Topics by their names; those that have none were asked for by an id that nobody knows."""
    return {str(topic.name): topic for topic in topics if topic.name is not None}
