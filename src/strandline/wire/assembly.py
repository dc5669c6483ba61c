"""Captured records in, rows of transactions out: the sink of an accumulator that makes a table, as the engine's sends.

The rules that this file keeps:

1. A transaction is told once, when all is known of it that ever will be.
2. Transactions of a connection are told in the order of their requests, and numbered so, from 0. Where reading begins
   within a connection, the first has the number that the capture has counted to.
3. What is not told yet is held within `Bounds`. What is told is for the caller to take before it is too much.
"""

from dataclasses import dataclass

from strandline.errors import ScatteredCapture, UnreadableRecord
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.captured import Unreadable, stream_of
from strandline.wire.kept import Kept, Room
from strandline.wire.table import Rows
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much is held of what is not told yet, in bytes."""

    body: int = 64 << 10
    """Of one body; beyond it only its length and its hash."""
    requests: int = 128 << 20
    """Of all requests together; where there are more, no more of their bodies is kept."""
    answers: int = 128 << 20
    """Of all responses together, about: each may keep its share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What is read, and how."""

    topic: str
    is_spread: bool
    """Whether it has several partitions."""
    expire_after: Nanos
    """How long a connection may be silent, in source time."""
    skip_unreadable: bool = False
    bounds: Bounds = Bounds()


class Assembly:
    """Takes the records of a capture, partition by partition in their order."""

    def __init__(self, capture: Capture, make: type[Accumulator] = Accumulator) -> None:
        self.rows = Rows(capture.topic)
        self._capture = capture
        self._room = Room(capture.bounds.body, capture.bounds.requests)
        self._accumulator = make(self, self._make_packets, expire_after=capture.expire_after, keep=self._keep)
        self._partitions: set[int] = set()
        self._indexes: dict[tuple[int, ConnectionKey], int] = {}
        """The number of the next transaction that is told, by connection."""
        self._first_index = 0
        """The number that the record at hand says."""
        self._unanswered = 0

    def take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition. Raises ScatteredCapture and UnreadableRecord."""
        stream = self._stream(partition, offset, key, value)
        if stream is not None:
            self._accept(partition, offset, stream)

    def end(self) -> None:
        """There is no more: what is whole counts, and what is not is told as it is."""
        for partition in self._partitions:
            self._accumulator.settle(partition)
            self._accumulator.drop(partition, Cause.END)

    def _stream(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> TrafficStream | None:
        try:
            stream = stream_of(value)
        except Unreadable as problem:
            if self._capture.skip_unreadable:
                return None
            raise UnreadableRecord(f"{self._capture.topic}/{partition}", offset, str(problem)) from None
        if self._capture.is_spread and key != stream.connectionId.encode():
            topic = self._capture.topic
            raise ScatteredCapture(topic, f"{topic}/{partition}", offset)
        return stream

    def _accept(self, partition: int, offset: int, stream: TrafficStream) -> None:
        self._partitions.add(partition)
        self._first_index = stream.priorRequestsReceived + stream.lastObservationWasUnterminatedRead
        place = (partition, ConnectionKey(stream.nodeId, stream.connectionId))
        if place not in self._indexes:
            self._indexes[place] = self._first_index
        self._accumulator.accept(Record(partition, offset, 0, _let_go), stream)

    def _make_packets(self) -> Kept:
        return Kept(self._room)

    def _keep(self) -> int:
        bounds = self._capture.bounds
        return min(bounds.body, bounds.answers // (self._unanswered + 1))

    # What the accumulator tells.

    def on_request(self, transaction: Transaction) -> None:  # noqa: ARG002
        self._unanswered += 1

    def on_answer(self, transaction: Transaction) -> None:
        self._unanswered -= 1
        self._tell(transaction)

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:  # noqa: ARG002
        self._tell(transaction)

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:  # noqa: ARG002
        if cause is Cause.BROKEN:
            # The record at hand begins another one of the same name.
            self._indexes[partition, key] = self._first_index
        else:
            del self._indexes[partition, key]

    def _tell(self, transaction: Transaction) -> None:
        place = (transaction.record.partition, transaction.key)
        index = self._indexes[place]
        self._indexes[place] = index + 1
        packets = transaction.packets
        assert isinstance(packets, Kept)  # noqa: S101  (we made it)
        size = packets.size
        self.rows.add(transaction, packets.take(), size, index)


def _let_go(record: Record) -> None:
    """Nothing is committed."""
