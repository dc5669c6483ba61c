"""Records that were taken from the log, put to the accumulator one after the other: what counts, and what does not."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from strandline.clock import Clock
from strandline.errors import ScatteredCapture
from strandline.kafka.claim import Claim
from strandline.kafka.events import Taken
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.captured import Unreadable, is_behind, stream_of
from strandline.wire.traffic import when
from strandline.wire.transactions import Record

AT_A_TIME = Nanos(1_000_000)
"""How long records are taken before other things have their turn: requests fall due meanwhile."""


class Intake:
    """Takes records, and knows up to where it has taken those of each partition."""

    def __init__(
        self,
        accumulator: Accumulator,
        progress: Progress,
        clock: Clock,
        *,
        topic: str,
        is_spread: bool,
        ends: Mapping[Partition, int] | None,
        until: datetime | None,
        end: Callable[[Partition], None],
        bury: Callable[[Taken, str], None],
    ) -> None:
        self.positions: dict[Partition, int] = {}
        """By partition, the offset behind all that was taken."""
        self.over: set[Partition] = set()
        """Partitions of which all is taken that was to be."""
        self._accumulator = accumulator
        self._progress = progress
        self._monotonic = clock.monotonic
        self._topic = topic
        self._is_spread = is_spread
        self._ends = ends
        self._until = until
        self._end = end
        self._bury = bury

    def take(self, records: Sequence[Taken], start: int, latest: Nanos) -> int:
        """Take records from this one on, for a short while; which is next. No time beyond the latest can be."""
        monotonic, over = self._monotonic, self.over
        pause_at = monotonic() + AT_A_TIME
        for index in range(start, len(records)):
            taken = records[index]
            if not (over and taken.partition in over):
                self._take(taken, latest)
            if monotonic() > pause_at:
                return index + 1
        return len(records)

    def _take(self, taken: Taken, latest: Nanos) -> None:
        partition, offset = taken.partition, taken.offset
        if self._ends is not None and offset >= self._ends.get(partition, 0):
            # It came after the start, and may be due long after all that there was then.
            self._end(partition)
            return
        try:
            stream = stream_of(taken.value)
        except Unreadable as problem:
            self.positions[partition] = offset + 1
            self._bury(taken, str(problem))
            return
        if self._is_spread and taken.key != stream.connectionId.encode():
            raise ScatteredCapture(self._topic, partition, offset)
        if self._until is not None and is_behind(stream, self._until) and when(stream.subStream[0]) <= latest:
            self._end(partition)
            return
        record = Record(partition.number, offset, taken.generation, self._free, taken.claim)
        self._accumulator.accept(record, stream)
        self.positions[partition] = offset + 1

    def _free(self, record: Record) -> None:
        assert isinstance(record.claim, Claim)  # noqa: S101  (we made it)
        self._progress.done(record.claim)
