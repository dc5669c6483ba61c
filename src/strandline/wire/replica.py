"""Who asks: a client, or one that says it is a replica, whom a broker shows and believes more. No client is one.

Fetch up to version 14, ListOffsets and OffsetForLeaderEpoch begin with the id of the replica. A Fetch from 15 on has it
in a tagged field at its end, so it is followed while it passes (`Skim`), and refused before that field has gone on.

A broker reads a tagged field that it knows by what is in it, whatever size it is said to have. Were it shorter than
that, the broker would find another field where nobody has looked here; so each must be as long as it says.
"""

import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from strandline.errors import MalformedFrame
from strandline.wire.kafka_frames import FETCH, Head, request_type
from strandline.wire.skim import Skim, Steps, uvarint_steps

I32: Final = struct.Struct(">i")
# Consumers are -1, tools -2.
A_CLIENT: Final = -1
# What stands before the topics of a Fetch, and in each of their partitions with how many tagged fields it has.
BEFORE_TOPICS: Final = 21
PARTITION: Final = 33
TOPIC_ID: Final = 16
# The id, its epoch, and that there are no tagged fields within.
REPLICA_STATE: Final = 13
MOST_TAGS: Final = 0x7F
LARGEST_NUMBER: Final = 0x7FFF_FFFF

Check = Callable[[memoryview], bool]


def refuse_replica(replica: int, api: str) -> None:
    """Refuse who says that it is a replica."""
    if replica > A_CLIENT:
        raise MalformedFrame(f"{api} of replica {replica}, which no client is")


def claimed(request: Any) -> int:
    """The replica that a request says it comes from; below 0 for a client."""
    return int(getattr(getattr(request, "replica_state", request), "replica_id", A_CLIENT))


def first_replica(frame: memoryview, head: Head) -> int | None:
    """The replica that a request begins with, as `claimed`; None while not all of it has come."""
    if not _begins_with_it(head.api_key, head.version):
        return A_CLIENT
    end = head.body + I32.size
    if end > head.frame:
        raise MalformedFrame(f"{head.name} ends before its first field does")
    return None if len(frame) < end else int(I32.unpack_from(frame, head.body)[0])


def last_replica(head: Head) -> Skim | None:
    """Follows a request that may end with the replica it comes from, from its first byte on; None for others."""
    return Skim(_fetch(head)) if head.api_key == FETCH and _ends_with_it(head.version) else None


@cache
def _begins_with_it(api_key: int, version: int) -> bool:
    plain = (each.name for each in fields(request_type(api_key, version)) if "tag" not in each.metadata)
    return next(plain, "") == "replica_id"


@cache
def _ends_with_it(version: int) -> bool:
    return any(each.name == "replica_state" for each in fields(request_type(FETCH, version)))


def _fetch(head: Head) -> Steps:
    yield -(head.body + BEFORE_TOPICS)
    for _ in range((yield from _count())):
        yield -TOPIC_ID
        for _ in range((yield from _count())):
            tags = (yield PARTITION)[-1]
            if tags:
                yield from _tags(tags, OF_PARTITION)
        yield from _tags((yield 1)[0])
    for _ in range((yield from _count())):  # topics to forget
        yield -TOPIC_ID
        yield -I32.size * (yield from _count())
        yield from _tags((yield 1)[0])
    yield -(yield from _count())  # the rack
    yield from _tags((yield 1)[0], OF_FETCH)


def _tags(count: int, known: Mapping[int, Check] = MappingProxyType({})) -> Steps:
    if count > MOST_TAGS:
        raise MalformedFrame("a fetch with too many tagged fields")
    for _ in range(count):
        tag = yield from _number()
        size = yield from _number()
        check = known.get(tag)
        if check is None:
            yield -size
        elif not 0 < size <= MOST_TAGS or not check((yield size)):
            raise MalformedFrame(f"a fetch whose tagged field {tag} is not what it should be")


def _count() -> Generator[int, memoryview, int]:
    return max((yield from _number()) - 1, 0)


def _number() -> Generator[int, memoryview, int]:
    """One that a broker, which has 32 bits for it, takes for the same."""
    number = yield from uvarint_steps()
    if number > LARGEST_NUMBER:
        raise MalformedFrame(f"a number of {number:,} in a fetch")
    return number


def _is_short_string(field: memoryview) -> bool:
    return field[0] == len(field)


def _is_client(field: memoryview) -> bool:
    refuse_replica(I32.unpack_from(field)[0] if len(field) >= I32.size else A_CLIENT, "fetch")
    return len(field) == REPLICA_STATE and not field[-1]


# The directory of a replica, and its high watermark.
OF_PARTITION: Final[Mapping[int, Check]] = MappingProxyType(
    {0: lambda field: len(field) == 16, 1: lambda field: len(field) == 8}
)
# The cluster's id, and the replica.
OF_FETCH: Final[Mapping[int, Check]] = MappingProxyType({0: _is_short_string, 1: _is_client})
