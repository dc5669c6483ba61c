"""What captured records are put together to: requests with their answers, and the records that they hold."""

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

from strandline.units import Nanos
from strandline.wire.identity import request_id

if TYPE_CHECKING:
    from strandline.wire.answers import Answer


class ConnectionKey(NamedTuple):
    """A connection, as the capture named it."""

    node: str
    connection: str

    def __str__(self) -> str:
        return f"{self.node}/{self.connection}" if self.node else self.connection


class Record:
    """A captured record that is in use; freed when the last of its users lets it go."""

    __slots__ = ("_free", "_users", "begun", "claim", "generation", "offset", "partition")

    def __init__(
        self, partition: int, offset: int, generation: int, free: Callable[["Record"], None], claim: object = None
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.generation = generation
        self.claim = claim
        """What its reader needs to let it go."""
        self.begun = 0
        """How many requests have begun in it."""
        self._users = 0
        self._free = free

    def hold(self) -> None:
        """One more user."""
        self._users += 1

    def release(self) -> None:
        """One user less."""
        self._users -= 1
        if not self._users:
            self._free(self)


class Packets(Protocol):
    """The bytes of a request, each piece with its time."""

    @property
    def size(self) -> int: ...
    def add(self, at: Nanos, data: bytes) -> None: ...
    def release(self) -> None: ...


class Cause(Enum):
    """Why a connection is gone."""

    CLOSED = auto()
    EXPIRED = auto()
    """Nothing was seen of it for too long."""
    REASSIGNED = auto()
    """Its partition was taken away, or came to us anew."""
    BROKEN = auto()
    """Records of it are missing."""
    END = auto()
    """We stop reading."""


class Transaction:
    """A request and, once it is known, the response that the source gave."""

    __slots__ = (
        "_before",
        "answer",
        "began",
        "ended",
        "head",
        "is_answered",
        "is_complete",
        "key",
        "method",
        "ordinal",
        "packets",
        "record",
        "records",
        "was_open",
    )

    def __init__(
        self,
        key: ConnectionKey,
        record: Record,
        packets: Packets,
        at: Nanos,
        *,
        before: Sequence[Record] = (),
        was_open: bool = False,
    ) -> None:
        """`before` are records that must be read too to know where it begins."""
        self.key = key
        self.ordinal = record.begun
        record.begun += 1
        self.record = record
        """The record in which the request begins."""
        self.records = [record]
        """Every record that has a byte of it."""
        record.hold()
        self._before = before
        for held in before:
            held.hold()
        self.packets = packets
        self.began = self.ended = at
        self.head = b""
        self.method = b"GET"
        self.is_complete = False
        self.was_open = was_open
        """Whether the connection was open before the first record that we saw of it."""
        self.answer: Answer | None = None
        self.is_answered = False
        """Whether the answer is all that will ever be known of it."""

    @property
    def id(self) -> str:
        """The same on every reading of the log."""
        return request_id(self.record.partition, self.record.offset, self.ordinal)

    def hold(self, record: Record) -> None:
        """A record that has a byte of it."""
        if self.records[-1] is not record:
            self.records.append(record)
            record.hold()

    def release(self) -> None:
        """All is done with it."""
        for record in self._before:
            record.release()
        for record in self.records:
            record.release()

    @property
    def anchors(self) -> list[Record]:
        """The records from which on reading finds it again."""
        return [*self._before, *self.records]


class Sink(Protocol):
    """What becomes of the transactions."""

    def on_request(self, transaction: Transaction) -> None:
        """A request is complete."""

    def on_answer(self, transaction: Transaction) -> None:
        """All is known of the source's response to a request that was given before."""

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        """A request that will never be complete."""

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        """A connection is gone."""
