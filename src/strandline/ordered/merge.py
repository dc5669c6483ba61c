"""Ranges of partitions, read from their leaders and given in order: what the consumer and a slice on Spark share."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from strandline.clock import Clock
from strandline.core.ordering import BEFORE_ALL_TIME, END_OF_TIME, START, Ordering
from strandline.core.slicing import Cut
from strandline.errors import OptionError
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.ordered.reading import Reading, Rules
from strandline.threads import aside
from strandline.units import Nanos
from strandline.wire.gather import Gather
from strandline.wire.records import Columns

# What is read while the rows before it are being used: enough to keep both busy, and little enough to stay in caches.
AHEAD_BYTES = 32 << 20
LEAST_BUFFERED = 1 << 20
MOST_BUFFERED = 1 << 30


def check_buffer(bytes_: int) -> None:
    """Refuse a buffer that is too small or too large: one batch may hold all of it, and Arrow's places have 31 bits."""
    if not LEAST_BUFFERED <= bytes_ <= MOST_BUFFERED:
        raise OptionError(f"a buffer of {bytes_:,} bytes; it takes {LEAST_BUFFERED:,} to {MOST_BUFFERED:,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What to read of a partition: from an offset up to, and without, another."""

    start: int
    end: int
    reached: int = BEFORE_ALL_TIME
    """The effective time of what comes before it."""


class Merge:
    """Make it within a running event loop; close it."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Mapping[Partition, Part],
        rules: Rules,
        clock: Clock,
        *,
        ceiling: int,
        buffer_bytes: int,
        cutoff: int = END_OF_TIME,
        idle_after: Nanos = START,
    ) -> None:
        parts = dict(sorted(parts.items()))  # rows of one time come by topic and partition
        self.ordering = Ordering(
            {partition: (part.start, part.end, part.reached) for partition, part in parts.items()},
            ceiling=ceiling,
            buffer_bytes=buffer_bytes,
            ahead_bytes=AHEAD_BYTES,
            cutoff=cutoff,
            idle_after=idle_after,
        )
        ends = {partition: part.end for partition, part in parts.items()}
        self.reading = Reading(cluster, self.ordering, ends, rules, clock)
        self._returned = {partition: part.start for partition, part in parts.items()}
        self._taken: dict[Partition, int] = {}
        self._leaving: asyncio.Task[pa.RecordBatch] | None = None
        self._clock = clock
        self._gather = Gather(list(parts))
        self.reading.start()

    async def poll(self, most: int, within: float) -> pa.RecordBatch:
        """The next rows in order as soon as there are any; none when the seconds are over or all has been returned."""
        batch = await self.offer(most, within)
        self.accept()
        return batch

    async def offer(self, most: int, within: float) -> pa.RecordBatch:
        """What `poll` returns; the same rows again, whether or not this was waited for, until `accept` is called."""
        if self._leaving is not None:
            return await asyncio.shield(self._leaving)
        deadline = self._clock.monotonic() + int(within * 1e9)
        was_live = self.ordering.is_live
        while True:
            if self.reading.failure is not None:
                raise self.reading.failure
            if self.ordering.is_live and not was_live:
                # It was what has been read that told so. The rows from here on are not of what was there before.
                return self._gather.nothing
            changed = self.reading.changed
            now = self._clock.monotonic()
            order = self.ordering.pop(most, now)
            if len(order):
                sources = self._take(order)
                self.reading.taken()
                self._leaving = asyncio.create_task(aside(partial(self._gather.batch, order, sources)))
                return await asyncio.shield(self._leaving)
            if now >= deadline or self.ordering.is_drained:
                return self._gather.nothing
            due = self.ordering.patience_ends()
            wait = (deadline if due is None else min(deadline, due)) - now
            try:
                async with asyncio.timeout(max(0, wait) / 1e9):
                    await changed.wait()
            except TimeoutError:
                continue

    def accept(self) -> None:
        """Count the rows that were offered as returned: whoever asked for them has them."""
        self._returned.update(self._taken)
        self._leaving = None

    def _take(self, order: NDArray[np.int32]) -> list[list[Columns]]:
        """The rows that leave, by partition."""
        sources = []
        counts = np.bincount(order, minlength=len(self.ordering.keys)).tolist()
        for partition, count in zip(self.ordering.keys, counts, strict=True):
            source = _take_first(self.reading.chunks[partition], count)
            if source:
                self._taken[partition] = int(source[-1].offset[-1]) + 1
            sources.append(source)
        return sources

    def read_beyond_ends(self) -> None:
        """Go on behind the ends."""
        self.ordering.go_live()
        self.reading.read_beyond_ends()

    def add(self, partition: Partition, start: int) -> None:
        """Take one more partition, behind the ends."""
        self.ordering.add(partition, start)
        self.reading.add(partition)
        self._returned[partition] = start
        self._gather = Gather(self.ordering.keys)

    def positions(self) -> dict[Partition, int]:
        """By partition, the offset behind all that `poll` has returned."""
        return {
            partition: max(returned, self.ordering.position(partition)) if self._is_empty(partition) else returned
            for partition, returned in self._returned.items()
        }

    def _is_empty(self, partition: Partition) -> bool:
        return self._leaving is None and not self.reading.chunks[partition]

    @property
    def is_live(self) -> bool:
        """Whether everything up to the ends, or the cutoff, has been returned."""
        return self.ordering.is_live and self._leaving is None

    @property
    def is_drained(self) -> bool:
        """Whether everything up to the ends has been returned."""
        return self.ordering.is_drained and self._leaving is None

    async def close(self) -> None:
        """Stop reading."""
        await self.reading.stop()
        if self._leaving is not None:
            await asyncio.gather(self._leaving, return_exceptions=True)


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


def sliced(parts: Mapping[Partition, Part], cuts: Sequence[Cut[Partition]]) -> list[dict[Partition, Part]]:
    """The parts between cuts, in order; a slice has only the partitions of which it has something."""
    slices = []
    before = {partition: part.start for partition, part in parts.items()}
    reached = {partition: part.reached for partition, part in parts.items()}
    for cut in (*cuts, None):
        ends = {partition: part.end for partition, part in parts.items()} if cut is None else cut.offsets
        slices.append(
            {
                partition: Part(start=before[partition], end=end, reached=reached[partition])
                for partition, end in ends.items()
                if before[partition] < end
            }
        )
        if cut is not None:
            before = dict(cut.offsets)
            reached = {partition: max(cut.time, time) for partition, time in reached.items()}
    return [slice_ for slice_ in slices if slice_]
