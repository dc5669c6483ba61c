"""A replay that sends nothing: what is in a capture, and what would become of it.

It is the sink of an accumulator, as the engine is, and takes the same records in the same order. What it holds does
not grow with the capture: sums, the connections that are open, the commonest of a bounded number of names.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from strandline.errors import MalformedHead, ScatteredCapture, TransformFailed
from strandline.kafka.partition import Partition
from strandline.replay.overlap import Intervals
from strandline.replay.transforms import Transform
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.captured import Unreadable, is_behind, stream_of
from strandline.wire.head import add_header, request_line
from strandline.wire.identity import marker
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction

MOST_NAMES = 10_000
LONGEST_NAME = 200
SAMPLE_BYTES = 64 << 10
SAMPLE_WITHIN = 1_000
"""Among so many requests one is looked for whose body is short enough to be held."""
OTHERS = "(others)"
NOT_HTTP = "(not HTTP/1)"


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as it was captured, and the head that would be sent."""

    id: str
    captured: bytes
    sent: bytes | None
    problem: str = ""
    """Why there is none to send."""


class _Counted:
    """The bytes of a request, of which only the number is of interest, and the content until there is a sample."""

    __slots__ = ("kept", "size")

    def __init__(self, keep: bool) -> None:
        self.size = 0
        self.kept = bytearray() if keep else None

    def add(self, at: Nanos, data: bytes) -> None:  # noqa: ARG002  (its time does not matter here)
        self.size += len(data)
        if self.kept is not None:
            self.kept = self.kept + data if self.size <= SAMPLE_BYTES else None

    def release(self) -> None:
        self.kept = None


class _Body:
    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def length(self) -> int:
        return len(self._content)

    def read(self) -> bytes:
        return self._content


class Rehearsal:
    """Takes the records of a capture, partition by partition in their order; then tells what it found."""

    def __init__(
        self,
        transform: Transform,
        *,
        expire_after: Nanos,
        partitions: int,
        marks: bool = True,
        until: datetime | None = None,
    ) -> None:
        self._transform = transform
        self._marks = marks
        self._until = until
        self._partitions = partitions
        self._accumulator = Accumulator(self, self._make, expire_after=expire_after, keep=lambda: 0)
        self._open: dict[ConnectionKey, Nanos] = {}
        self._taken: set[Partition] = set()
        self.over: set[Partition] = set()
        """Partitions of which no more is to be read."""
        self.records = 0
        self.connections = 0
        self.requests = 0
        self.request_bytes = 0
        self.answer_bytes = 0
        self.first: Nanos | None = None
        self.last = Nanos(0)
        self.methods: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.unsent: Counter[Cause] = Counter()
        self.unreadable = 0
        self.first_unreadable = ""
        self.sample: Sample | None = None
        self.exchanges = Intervals()
        self.openings = Intervals()

    def take(self, partition: Partition, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition. Raises ScatteredCapture."""
        if partition in self.over:
            return
        self.records += 1
        self._taken.add(partition)
        try:
            stream = stream_of(value)
        except Unreadable as problem:
            self.unreadable += 1
            self.first_unreadable = self.first_unreadable or f"{partition}@{offset} {problem}"
            return
        if key != stream.connectionId.encode() and self._partitions > 1:
            raise ScatteredCapture(partition.topic, partition, offset)
        if self._until is not None and is_behind(stream, self._until):
            self.over.add(partition)
            return
        self._accumulator.accept(Record(partition.number, offset, 0, _let_go), stream)

    def end(self) -> None:
        """There is no more."""
        for partition in self._taken:
            self._accumulator.settle(partition.number)
            self._accumulator.drop(partition.number, Cause.END)

    def close(self) -> None:
        """Give the files back."""
        self.exchanges.close()
        self.openings.close()

    # What the accumulator tells.

    def on_request(self, transaction: Transaction) -> None:
        self.requests += 1
        self.request_bytes += transaction.packets.size
        began = transaction.began
        self.first = began if self.first is None else min(self.first, began)
        self.last = max(self.last, transaction.ended)
        self._open.setdefault(transaction.key, began)
        try:
            method, target, _ = request_line(transaction.head)
        except MalformedHead:
            method, target = NOT_HTTP, NOT_HTTP
        _count(self.methods, method)
        _count(self.paths, target.partition("?")[0])
        if self.sample is None and transaction.head:
            self.sample = self._rewritten(transaction)

    def on_answer(self, transaction: Transaction) -> None:
        answer, end = transaction.answer, transaction.ended
        if answer is not None:
            self.answer_bytes += len(answer.head) + answer.length
            end = max(end, answer.ended)
        self.exchanges.add(transaction.began, end)

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:  # noqa: ARG002
        self.unsent[cause] += 1

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:  # noqa: ARG002
        began = self._open.pop(key, None)
        if began is not None:
            self.connections += 1
            self.openings.add(began, at)

    def _make(self) -> _Counted:
        return _Counted(keep=self.sample is None and self._transform.needs_body and self.requests < SAMPLE_WITHIN)

    def _rewritten(self, transaction: Transaction) -> Sample | None:
        """The request as it would be sent; None where too much of it would have to be held to see."""
        packets = transaction.packets
        assert isinstance(packets, _Counted)  # noqa: S101  (we made it)
        if packets.kept is None and self._transform.needs_body:
            return None
        body = bytes(packets.kept or b"")[len(transaction.head) :]
        try:
            head, _ = self._transform.apply(transaction.head, _Body(body))
        except TransformFailed as error:
            return Sample(transaction.id, transaction.head, None, str(error))
        if self._marks:
            record = transaction.record
            head = add_header(head, marker(record.partition, record.offset, transaction.ordinal))
        return Sample(transaction.id, transaction.head, head)


def _let_go(record: Record) -> None:
    """Nothing is committed."""


def _count(counter: Counter[str], name: str) -> None:
    """Count a name, or one more of the others where there are too many names already."""
    name = name[:LONGEST_NAME]
    counter[name if name in counter or len(counter) < MOST_NAMES else OTHERS] += 1
