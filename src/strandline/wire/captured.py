"""What the value of a captured record is, and whether it lies behind the end of a replay."""

from datetime import datetime

from google.protobuf.message import DecodeError

from strandline.wire.traffic import when
from strandline.wire.traffic_pb2 import TrafficStream


class Unreadable(ValueError):
    """A value that is of no use, with the reason."""


def stream_of(value: bytes | None) -> TrafficStream:
    """The part of a connection that a record holds. Raises Unreadable."""
    try:
        stream = TrafficStream.FromString(value or b"")
    except DecodeError as error:
        raise Unreadable(f"is no TrafficStream: {error}") from None
    if not stream.connectionId:
        raise Unreadable("is a TrafficStream of no connection")
    return stream


def is_behind(stream: TrafficStream, until: datetime) -> bool:
    """Whether what it holds happened at this time or later."""
    return bool(stream.subStream) and when(stream.subStream[0]) / 1e9 >= until.timestamp()
