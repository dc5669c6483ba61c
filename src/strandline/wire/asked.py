"""What a client of the gateway may say: JSON texts, each checked as a whole before anything is done.

Offsets are whole numbers that a log can have. A last offset is the last one received, so that a replay begins
behind it; a position is the first one wanted.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from strandline.wire.resume_token import Position

MOST_OFFSET = 2**63 - 1
NUMBER = re.compile(r"[0-9]{1,9}")

# As a text too: a number of JavaScript's has no room for all digits.
Digits = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,19}$")]
# -1: nothing received yet.
LastOffset = Annotated[int, msgspec.Meta(ge=-1, le=MOST_OFFSET)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=MOST_OFFSET)]
Millis = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Credit = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Channel = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
ClientId = Annotated[str, msgspec.Meta(max_length=128)]
Token = Annotated[str, msgspec.Meta(max_length=64 << 10)]


class _Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """One message; what it does not name is passed over, so that clients may be newer than we are."""


class Channels(msgspec.Struct, frozen=True):
    """Which channels: names, or beginnings with a star behind them."""

    channels: list[Channel]


class Missed(msgspec.Struct, frozen=True):
    """What the client of old knows: the last offset that it received, by topic or by topic and partition."""

    last_offset: dict[Name, LastOffset | Digits | dict[str, LastOffset | Digits]]
    client_id: ClientId = ""


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to go on, in one message."""

    channels: list[Channel] = []
    positions: dict[Name, dict[str, Offset | Digits]] | None = None
    token: Token | None = None
    since: Millis | None = None
    """From the first record with this time on; epoch milliseconds."""
    credit: Credit | None = None
    """How many replayed messages may come before the client says more."""
    client_id: ClientId = ""


class More(msgspec.Struct, frozen=True):
    """Room for so many more replayed messages."""

    credit: Credit


class Fresh(msgspec.Struct, frozen=True):
    """Another token at the door, before the one that was shown there ends."""

    token: Token


class Subscribe(_Said, frozen=True, tag="subscribe"):
    data: Channels


class Unsubscribe(_Said, frozen=True, tag="unsubscribe"):
    data: Channels


class Reconnect(_Said, frozen=True, tag="reconnect"):
    data: Missed


class Resume(_Said, frozen=True, tag="resume"):
    data: Going


class Ack(_Said, frozen=True, tag="ack"):
    data: More


class Auth(_Said, frozen=True, tag="auth"):
    data: Fresh


class Ping(_Said, frozen=True, tag="ping"):
    pass


Said = Subscribe | Unsubscribe | Reconnect | Resume | Ack | Auth | Ping

_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


class _Kind(msgspec.Struct):
    type: str


_kinds = msgspec.json.Decoder(_Kind)

ERROR = "error"
RECONNECT_ERROR = "reconnect_error"
"""What a client of old hears in place of an error where it has asked to reconnect."""


class NotUnderstood(ValueError):
    """A text that is no message of ours, with the code that the client is told, and the type of what tells it."""

    def __init__(self, code: str, problem: str, answer: str = ERROR) -> None:
        super().__init__(problem)
        self.code = code
        self.answer = answer


def read(text: bytes) -> Said:
    """The message in a text."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        problem = str(error)
        code = "unknown_type" if problem.endswith("`$.type`") else "bad_message"
        raise NotUnderstood(code, problem, RECONNECT_ERROR if _is_reconnect(text) else ERROR) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotUnderstood("bad_json", str(error)) from None


def _is_reconnect(text: bytes) -> bool:
    """Whether a message that has something wrong in it was to be a reconnect."""
    try:
        return _kinds.decode(text).type == Reconnect.__struct_config__.tag
    except (msgspec.DecodeError, RecursionError):
        return False


def partitions_of(topic: str, places: Mapping[str, int | str]) -> dict[int, int]:
    """Offsets by the number of the partition, which JSON has as text."""
    found = {}
    for number, offset in places.items():
        if not NUMBER.fullmatch(number):
            raise NotUnderstood("bad_message", f"'{number[:20]}' is no partition of '{topic}'")
        found[int(number)] = offset_of(offset)
    return found


def offset_of(told: int | str) -> int:
    """An offset, as a number or as its digits."""
    offset = int(told)
    if offset > MOST_OFFSET:
        raise NotUnderstood("bad_message", f"{offset} is more than an offset can be")
    return offset


def positions_of(missed: Missed) -> dict[str, dict[int, Position] | Position]:
    """By topic, the position behind what was received: one alone where the client knows no partitions."""
    return {
        topic: {number: Position(offset + 1) for number, offset in partitions_of(topic, last).items()}
        if isinstance(last, dict)
        else Position(offset_of(last) + 1)
        for topic, last in missed.last_offset.items()
    }
