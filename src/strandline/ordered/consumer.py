"""The consumer for asyncio: rows of all partitions in order, as Arrow batches.

What is promised, for everything that is on the brokers when it starts (up to each partition's end, which under
`read_committed` is the last stable offset):

- rows of a partition come in the order of their offsets;
- across partitions effective times never go back (see `core/ordering.py`);
- every record comes exactly once; what the brokers delete or have damaged under the reader is named in `losses`.

After that (`is_live`), rows are still merged by time, but none waits longer than `idle_after` for a silent partition.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Literal, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from strandline.clock import Clock, SystemClock
from strandline.core.ordering import END_OF_TIME, Ordering
from strandline.errors import OffsetOutOfRange, OptionError, did_you_mean
from strandline.kafka.cluster import Cluster, Isolation, refuse_unused
from strandline.kafka.group import Group
from strandline.kafka.partition import Partition
from strandline.ordered.reading import Loss, Reading, Rules
from strandline.ordered.starts import Range, Topic, resolve
from strandline.units import nanos
from strandline.wire.gather import SCHEMA, Gather
from strandline.wire.records import Columns

# Arrow's offsets within a batch have 31 bits, and a batch may hold all that is buffered.
MOST_BUFFERED = 1 << 30
LEAST_BUFFERED = 1 << 20
# What is read while the rows before it are being used: enough to keep both busy, and little enough to stay in caches.
AHEAD_BYTES = 32 << 20
POLL_WITHIN = 1.0
ISOLATIONS = {isolation.name.lower(): isolation for isolation in Isolation}

PARTITIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("position", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("state", pa.string()),
        ("held_rows", pa.int64()),
        ("held_bytes", pa.int64()),
        ("paused", pa.bool_()),
    ]
)


class AsyncOrderedConsumer:
    """Use it as a context manager, or call `start` and `close`."""

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[Topic],
        *,
        cutoff: datetime | None = None,
        batch_rows: int = 100_000,
        buffer_bytes: int = 256 << 20,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        idle_after: timedelta = timedelta(milliseconds=500),
        max_ahead: timedelta = timedelta(hours=1),
        on_corrupt: Literal["error", "skip"] = "error",
        on_missing: Literal["earliest", "error"] = "earliest",
        clock: Clock | None = None,
    ) -> None:
        if not topics:
            raise OptionError("no topic to read")
        if batch_rows < 1:
            raise OptionError(f"batch_rows is {batch_rows}; a batch has at least one row")
        if not LEAST_BUFFERED <= buffer_bytes <= MOST_BUFFERED:
            raise OptionError(f"buffer_bytes is {buffer_bytes:,}; it takes {LEAST_BUFFERED:,} to {MOST_BUFFERED:,}")
        if cutoff is not None and cutoff.tzinfo is None:
            raise OptionError(f"cutoff {cutoff} has no time zone; give it one, such as datetime.UTC")
        for name, value, valid in (
            ("isolation", isolation, ISOLATIONS),
            ("on_corrupt", on_corrupt, ("error", "skip")),
            ("on_missing", on_missing, ("earliest", "error")),
        ):
            if value not in valid:
                raise OptionError(f"{name} is '{value}'; {did_you_mean(value, valid)}")
        if idle_after < timedelta(0) or max_ahead < timedelta(0):
            raise OptionError("idle_after and max_ahead are not negative")
        if len({topic.name for topic in topics}) < len(topics):
            raise OptionError("a topic is named twice")
        self._settings = dict(settings)
        self._topics = list(topics)
        self._cutoff = END_OF_TIME if cutoff is None else int(cutoff.timestamp() * 1000)
        self._batch_rows = batch_rows
        self._buffer_bytes = buffer_bytes
        self._idle_after = idle_after
        self._max_ahead = max_ahead
        self._rules = Rules(ISOLATIONS[isolation], on_corrupt == "skip", on_missing == "earliest")
        self._clock = clock or SystemClock()
        self._cluster = Cluster(self._settings)
        self._group = Group(self._settings) if "group.id" in self._settings else None
        if self._group is None:
            refuse_unused(self._settings)
        self._reading: Reading | None = None
        self._ordering: Ordering[Partition]
        self._ranges: dict[Partition, Range]
        self._returned: dict[Partition, int]
        self._gather: Gather

    async def start(self) -> Self:
        """Find every partition, its range and its leader, and begin to read."""
        now = datetime.fromtimestamp(self._clock.wall() / 1e9, UTC)
        self._ranges = await resolve(self._cluster, self._topics, self._rules.isolation, self._group, now)
        for partition, range_ in self._ranges.items():
            if range_.start < range_.earliest and not self._rules.skip_missing:
                raise OffsetOutOfRange(partition, asked=range_.start, earliest=range_.earliest, latest=range_.end)
        self._gather = Gather(list(self._ranges))
        self._returned = {partition: range_.start for partition, range_ in self._ranges.items()}
        self._ordering = Ordering(
            {partition: (range_.start, range_.end) for partition, range_ in self._ranges.items()},
            ceiling=int((now + self._max_ahead).timestamp() * 1000),
            buffer_bytes=self._buffer_bytes,
            ahead_bytes=AHEAD_BYTES,
            cutoff=self._cutoff,
            idle_after=nanos(self._idle_after),
        )
        ends = {partition: range_.end for partition, range_ in self._ranges.items()}
        self._reading = Reading(self._cluster, self._ordering, ends, self._rules, self._clock)
        self._reading.start()
        return self

    async def poll(self, timeout: float = POLL_WITHIN) -> pa.RecordBatch:
        """The next rows in order as soon as there are any, at most `batch_rows`; none when the time is out."""
        reading = self._running()
        deadline = self._clock.monotonic() + int(timeout * 1e9)
        while True:
            if reading.failure is not None:
                raise reading.failure
            if self._ordering.is_drained:
                self._ordering.go_live()
                reading.read_beyond_ends()
            changed = reading.changed
            now = self._clock.monotonic()
            order = self._ordering.pop(self._batch_rows, now)
            if len(order):
                sources = self._take(order, reading)
                reading.taken()
                return await asyncio.to_thread(self._gather.batch, order, sources)
            due = self._ordering.patience_ends()
            wait = (deadline if due is None else min(deadline, due)) - now
            if now >= deadline:
                return pa.RecordBatch.from_pylist([], schema=SCHEMA)
            try:
                async with asyncio.timeout(max(0, wait) / 1e9):
                    await changed.wait()
            except TimeoutError:
                continue

    def _take(self, order: NDArray[np.int32], reading: Reading) -> list[list[Columns]]:
        """The rows that leave, by partition."""
        sources = []
        counts = np.bincount(order, minlength=len(self._ordering.keys)).tolist()
        for partition, count in zip(self._ordering.keys, counts, strict=True):
            source = _take_first(reading.chunks[partition], count)
            if source:
                self._returned[partition] = int(source[-1].offset[-1]) + 1
            sources.append(source)
        return sources

    async def until_live(self) -> AsyncIterator[pa.RecordBatch]:
        """The batches up to the moment at which all that was there at the start, or the cutoff, has been returned."""
        while not self.is_live:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while True:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    @property
    def is_live(self) -> bool:
        """Whether `poll` has returned every row up to each partition's end at the start, or up to the cutoff."""
        self._running()
        return self._ordering.is_live

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What could not be read: deleted by the brokers before we came to it, or corrupt."""
        return tuple(self._running().losses)

    def positions(self) -> dict[Partition, int]:
        """By partition, the offset behind all that `poll` has returned."""
        reading = self._running()
        return {
            partition: returned if reading.chunks[partition] else max(returned, self._ordering.position(partition))
            for partition, returned in self._returned.items()
        }

    def partitions(self) -> pa.Table:
        """How far each partition is, one row a partition."""
        reading = self._running()
        rows = []
        for partition, range_ in self._ranges.items():
            held_rows, held_bytes = self._ordering.held(partition)
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.number,
                    "start": range_.start,
                    "end": range_.end,
                    "position": self._ordering.position(partition),
                    "timestamp": self._ordering.reached(partition),
                    "state": self._state(partition, range_),
                    "held_rows": held_rows,
                    "held_bytes": held_bytes,
                    "paused": self._ordering.position(partition) < range_.end and not reading.wants(partition),
                }
            )
        return pa.Table.from_pylist(rows, schema=PARTITIONS)

    def _state(self, partition: Partition, range_: Range) -> str:
        if self._ordering.is_live:
            return "live"
        if self._ordering.position(partition) >= range_.end:
            return "caught up"
        return "unknown" if self._ordering.reached(partition) is None else "behind"

    async def commit(self) -> None:
        """Commit the offsets of all that `poll` has returned, for the group of the settings."""
        if self._group is None:
            raise OptionError("commit() needs the setting 'group.id'")
        await self._group.commit(self.positions())

    async def close(self) -> None:
        """Stop reading and close every connection. What was not committed is read again the next time."""
        if self._reading is not None:
            await self._reading.stop()
        self._cluster.close()
        if self._group is not None:
            await self._group.close()
            self._group = None

    def _running(self) -> Reading:
        if self._reading is None:
            raise OptionError("the consumer has not been started: use it as a context manager")
        return self._reading

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _take_first(chunks: deque[Columns], count: int) -> list[Columns]:
    """Take so many rows from the front."""
    taken: list[Columns] = []
    while count:
        first = chunks.popleft()
        if count < len(first):
            chunks.appendleft(first.between(count, len(first)))
            first = first.between(0, count)
        taken.append(first)
        count -= len(first)
    return taken
