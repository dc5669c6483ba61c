"""What a client hears from a gateway: records, what is missing, and answers."""

from base64 import b64decode
from dataclasses import dataclass
from typing import Any

import msgspec

from strandline.json_decode import decode


@dataclass(frozen=True, slots=True)
class Message:
    """A record, as the gateway sent it."""

    seq: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    channel: str
    type: str
    priority: str
    data: Any
    """What its JSON says; bytes where the record's value is no JSON."""


@dataclass(frozen=True, slots=True)
class Missed:
    """Offsets that cannot be had, from the first to the last of them; None where nobody knows how many."""

    topic: str
    partition: int
    first: int
    last: int | None
    reason: str


class Envelope(msgspec.Struct):
    """Anything that a gateway says; what it does not say stands as it is here."""

    type: str
    seq: int = 0
    ts: int = 0
    priority: str = ""
    channel: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = -1
    data: Any = None
    encoding: str | None = None
    token: str | None = None
    positions: dict[str, dict[int, str]] = {}
    channels: list[str] = []
    status: str = ""
    code: str = ""
    message: str = ""
    retry_after: float | None = None
    from_: int | None = msgspec.field(name="from", default=None)
    to: int | None = None
    reason: str = ""


_decoder = msgspec.json.Decoder(Envelope)


def read(text: str | bytes) -> Envelope:
    """What a text says; raises MalformedJson where no gateway says so."""
    return decode(text, _decoder)


def message(told: Envelope) -> Message:
    """The record that an envelope has."""
    return Message(
        told.seq,
        told.topic,
        told.partition,
        told.offset,
        told.ts,
        told.channel,
        told.type,
        told.priority,
        b64decode(told.data) if told.encoding == "base64" else told.data,
    )
