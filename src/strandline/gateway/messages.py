"""What the processes of one gateway say to each other, beside what any crew and its workers do."""

from dataclasses import dataclass
from typing import Self

import msgspec

from strandline.workers.messages import Failed, Ready, Stop


@dataclass(slots=True)
class Counts:
    """Since the start."""

    connections: int = 0
    refused: int = 0
    delivered: int = 0
    replays: int = 0
    replays_done: int = 0
    replays_failed: int = 0
    replay_s: float = 0.0
    replayed: int = 0
    slow: int = 0

    def add(self, other: Self) -> None:
        """Count what another has counted too."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Denied(msgspec.Struct, frozen=True):
    """A replay that may not begin now."""

    code: str
    message: str
    retry_after: float


# From a worker.


class Enter(msgspec.Struct, frozen=True, tag="enter"):
    """Somebody has connected; is there room?"""

    number: int
    address: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """One who was let in is gone."""

    address: str


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A client wants to be sent old records; may it?"""

    number: int
    owner: str
    """Whose client it is, as far as the gateway knows by itself."""
    name: str
    """What the client calls itself."""
    rank: int
    is_paid: bool
    """Whether it is the next page of something that was allowed already."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It has them, or wants them no more."""

    number: int


class Replays(msgspec.Struct, frozen=True):
    """Replays from Kafka, of all workers."""

    at_once: int
    """How many may go on now."""
    going_on: int
    waiting: int


class State(msgspec.Struct, frozen=True, tag="state"):
    """How it is; comes every moment."""

    counts: Counts
    open_connections: int
    partitions: int
    recent_bytes: int
    lag: float
    """How late its event loop was, in seconds, since the last time."""
    trouble: list[str]
    replays: Replays | None = None
    """None from a worker: that is known where it is decided."""


FromWorker = Ready | Failed | Enter | Leave | Ask | Done | State


# To a worker.


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All that it has to know."""

    number: int
    config: bytes
    """What the configuration's file held when it was read, once for all."""
    file: str
    kafka: dict[str, str]
    host: str
    port: int
    own_key: str
    """What signs resume tokens where the configuration has no key."""


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """The answer to an Enter."""

    number: int
    is_admitted: bool


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """The answer to an Ask."""

    number: int
    denied: Denied | None


ToWorker = Start | Entered | Answered | Stop

from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
