"""What became of a transaction: one JSON record each, never too large for Kafka.

Times are whole microseconds since 1970 UTC. A head is latin-1; a body is text if it is UTF-8, and base64 if it is not,
always as it was on the wire. What is too long is cut and keeps its `length`; a body that is cut has the `sha256` of the
whole. `sent_us` is of the first attempt, and lateness with it; `first_byte_us` and `end_us` are of the last.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from strandline.replay.retries import Verdict
from strandline.units import Nanos

MAX_RECORD = 900_000
# Of these the first and the last are kept.
MAX_ATTEMPTS = 20
MAX_POSITIONS = 200

Position = tuple[int, int]
"""A partition and an offset."""


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A request or a response as it was on the wire. A body too large to hold is there with its first part only."""

    head: bytes
    body: bytes = b""
    length: int = -1
    """How long the whole body is; -1 if it is all there."""
    sha256: str | None = None
    """Of the whole body, as hex, if its holder has it."""
    status: int = 0
    """Of a response, if its holder has read it."""


class Attempt(msgspec.Struct, kw_only=True, gc=False):
    """One sending of the request, and what came of it."""

    response: Message | None = None
    sent: Nanos | None = None
    first_byte: Nanos | None = None
    end: Nanos | None = None
    error: str | None = None


class Outcome(msgspec.Struct, kw_only=True, gc=False):
    """All that is known of a transaction when it is over."""

    partition: int
    offset: int
    ordinal: int
    connection: str
    node: str
    generation: int
    records: Sequence[Position]
    """Every record that holds a part of it."""
    source_request: Message
    source_response: Message | None
    source_complete: bool
    """Whether the capture holds the whole response."""
    target_request: Message | None
    """As it was sent; None if it could not be made."""
    attempts: Sequence[Attempt]
    source_time: Nanos
    source_end: Nanos | None
    """When the source's response ended."""
    due: Nanos | None
    verdict: Verdict
    same_body: bool | None
    error: str | None


class Limits(NamedTuple):
    """How much of each part a record holds, in bytes."""

    body: int = 64 << 10
    head: int = 64 << 10
    text: int = 64 << 10


# A sign of JSON may take six bytes, so a record may come out too large; with the last of these it cannot.
WIDEST = Limits()
NARROWER = (Limits(16 << 10, 16 << 10, 4 << 10), Limits(4 << 10, 4 << 10, 1 << 10), Limits(0, 1 << 10, 500))


class MessageRecord(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """A request or a response in a result."""

    method: str | None = None
    target: str | None = None
    status: int | None = None
    complete: bool | None = None
    head: str
    head_length: int | None = None
    """Of a head that is cut."""
    body: str | None = None
    body_base64: str | None = None
    length: int
    sha256: str | None = None


class AttemptRecord(msgspec.Struct, kw_only=True, gc=False):
    """An attempt in a result."""

    response: MessageRecord | None
    sent_us: int | None
    first_byte_us: int | None
    end_us: int | None
    error: str | None


class Result(msgspec.Struct, kw_only=True, gc=False):
    """A result."""

    id: str
    connection: str
    node: str
    partition: int
    offset: int
    ordinal: int
    records: Sequence[Position]
    record_count: int
    generation: int
    source_request: MessageRecord
    source_response: MessageRecord | None
    target_request: MessageRecord | None
    attempts: Sequence[AttemptRecord]
    attempt_count: int
    source_time_us: int
    source_end_us: int | None
    """When the source's response ended, if the capture has it."""
    due_us: int | None
    sent_us: int | None
    first_byte_us: int | None
    end_us: int | None
    lateness_us: int | None
    verdict: Verdict
    same_body: bool | None
    error: str | None
