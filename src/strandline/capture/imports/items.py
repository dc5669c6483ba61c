"""What a reader of captured traffic gives: records, what could not be read, and what was left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from strandline.units import Nanos
from strandline.wire.traffic import index_of, when
from strandline.wire.traffic_pb2 import TrafficStream

MOST_RECORD = 1 << 20
"""Records of other captures may be so large; our own are smaller."""


class Connection(NamedTuple):
    """Two nodes may name their connections alike."""

    node: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of a connection, with what its bytes say."""

    connection: Connection
    number: int
    first: Nanos
    """When the first thing in it was seen, and the last one."""
    last: Nanos
    requests: int
    """How many requests end in it."""
    value: bytes
    stamp_ms: int
    """The time that it has in Kafka."""
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that cannot be read, and where it is."""

    place: str
    problem: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One thing that does not belong into a capture, or that is not there."""

    what: str


Item = Record | Broken | LeftOut


class Readable(Protocol):
    """A file of bytes."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self, size: int, /) -> bytes: ...


class Unreadable(ValueError):
    """Bytes that are no record."""


def parse(value: bytes) -> Record:
    """What a record says; raises `Unreadable`."""
    if len(value) > MOST_RECORD:
        raise Unreadable(f"a record of more than {MOST_RECORD:,} bytes")
    try:
        stream = TrafficStream.FromString(value)
    except DecodeError:
        raise Unreadable("is not a TrafficStream") from None
    if not stream.connectionId:
        raise Unreadable("is not a TrafficStream: it names no connection")
    number = index_of(stream)
    if number < 1:
        raise Unreadable(f"record of connection '{stream.connectionId}' without its number")
    times = [when(observation) for observation in stream.subStream if observation.HasField("ts")]
    first = min(times, default=Nanos(0))
    return Record(
        connection=Connection(stream.nodeId, stream.connectionId),
        number=number,
        first=first,
        last=max(times, default=Nanos(0)),
        requests=sum(observation.HasField("endOfMessageIndicator") for observation in stream.subStream),
        value=value,
        stamp_ms=first // 1_000_000,
    )


def parse_all(values: list[bytes]) -> Iterator[Record]:
    """The records that a recording gave."""
    return map(parse, values)


def shifted(record: Record, by: Nanos) -> Record:
    """The same at another time."""
    stream = TrafficStream.FromString(record.value)
    for observation in stream.subStream:
        observation.ts.seconds, observation.ts.nanos = divmod(when(observation) + by, 1_000_000_000)
    return Record(
        connection=record.connection,
        number=record.number,
        first=Nanos(record.first + by),
        last=Nanos(record.last + by),
        requests=record.requests,
        value=stream.SerializeToString(),
        stamp_ms=record.stamp_ms + by // 1_000_000,
        headers=record.headers,
    )
