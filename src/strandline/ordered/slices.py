"""Cuts a log by time into slices of about as many rows each, without reading it: what Spark reads in parallel.

A broker finds offsets by time fast, but what it finds is a hint. It counts every record from the start of the log on:
those before our start, those of aborted transactions, and strays far ahead, behind which it finds nothing more. It may
also miss the first of several records of one time. So a hint for the millisecond before is where we begin to look, and
the records themselves say where the first row is. Where a hint is none, the headers of all batches are read, once
(`ordered/index.py`).
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from strandline.core.ordering import effective_times
from strandline.core.slicing import MOST_GUESSES, Cut, cut_within_a_time, even_targets, next_guess
from strandline.kafka.cluster import HIGHEST_TIME, Cluster, Found
from strandline.kafka.partition import Partition
from strandline.ordered.index import LOOK_BYTES, Indexes
from strandline.ordered.merge import Part
from strandline.ordered.reading import Rules, scan_fetched
from strandline.wire.fetched import Scanned, rows
from strandline.wire.records import Columns

# A slice may have so much more or fewer rows than its share: exact shares would take many more questions.
TOLERANCE = 0.05
# The timestamp of a record that has none.
NO_TIME = -1

Find = Callable[[int], Awaitable[Mapping[Partition, int]]]


class Slicer:
    """Finds rows by their effective time in the given parts of a log."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Mapping[Partition, Part],
        rules: Rules,
        ceiling: int,
        indexes: Indexes | None = None,
    ) -> None:
        self._cluster = cluster
        self._parts = dict(sorted(parts.items()))
        self._rules = rules
        self._ceiling = ceiling
        self._indexes = Indexes(cluster, rules) if indexes is None else indexes
        self._running: dict[Partition, tuple[list[int], list[int]]] = {}

    @property
    def rows(self) -> int:
        """How many offsets the parts have; a few of them may have no row."""
        return sum(part.end - part.start for part in self._parts.values())

    async def cut(self, slices: int) -> list[Cut[Partition]]:
        """The cuts that make so many slices of the parts, fewer where there are not so many rows."""
        targets = even_targets(self.rows, min(slices, self.rows))
        tolerance = int(self.rows / slices * TOLERANCE)
        low, high = await self._bracket() if targets else ((0, 0), (0, 0))
        cuts = []
        for target in targets:
            cut = await self._cut_behind(target, low, high, self._hints, tolerance)
            cuts.append(cut)
            low = (cut.time, self._rows_before(cut.offsets))
        return cuts

    async def cut_behind(self, target: int) -> Cut[Partition]:
        """A cut behind so many rows, and no more."""
        low, high = await self._bracket()
        cut = await self._cut_behind(target, low, high, self._hints)
        if self._rows_before(cut.offsets) > target:
            # Hints are in the wrong place where times go up and down; rows are not, and take longer.
            cut = await self._cut_behind(target, low, high, self.firsts)
        return cut

    async def _cut_behind(
        self, target: int, low: tuple[int, int], high: tuple[int, int], find: Find, tolerance: int = 0
    ) -> Cut[Partition]:
        for attempt in range(MOST_GUESSES):
            if high[0] - low[0] <= 1:
                break
            time = next_guess(low, high, target, attempt)
            before = self._rows_before(await find(time))
            if abs(before - target) <= tolerance:
                return Cut(time, await self.firsts(time))
            if before < target:
                low = (time, before)
            else:
                high = (time, before)
        # Many rows have one time: the cut is among them.
        firsts, behind = await self.firsts(low[0]), await self.firsts(low[0] + 1)
        return cut_within_a_time(low[0], firsts, behind, max(0, target - self._rows_before(firsts)))

    async def firsts(self, time: int) -> dict[Partition, int]:
        """By partition, its first row of an effective time or a later one; its end where there is none."""
        hints = await self._hints(time - 1)
        found = await asyncio.gather(*(self._first(partition, time, hints[partition]) for partition in self._parts))
        return dict(zip(self._parts, found, strict=True))

    async def _first(self, partition: Partition, time: int, at: int) -> int:
        part = self._parts[partition]
        if part.reached >= time:
            return part.start
        while at < part.end:
            scanned = await self._look(partition, at, LOOK_BYTES)
            found = self._rows(scanned)
            counted = (found.timestamp >= time) & (found.timestamp <= self._ceiling)
            if counted.any():
                return int(found.offset[int(np.argmax(counted))])
            at = scanned.position
        return part.end

    async def _hints(self, time: int) -> dict[Partition, int]:
        """By partition, an offset not behind the first row that is later than a time, and mostly near it."""
        asked = {partition: max(0, time) for partition in self._parts if partition not in self._running}
        found = await self._cluster.offsets(asked, self._rules.isolation)
        hints = {}
        for partition, part in self._parts.items():
            if partition in found:
                offset, stamp = found[partition].offset, found[partition].timestamp
                if offset < 0:
                    hints[partition] = part.end
                    continue
                if offset >= part.start and stamp <= self._ceiling:
                    hints[partition] = min(offset, part.end)
                    continue
            starts, reached = await self._index(partition)
            place = bisect_right(reached, time)
            hints[partition] = starts[place] if place < len(starts) else part.end
        return hints

    async def _index(self, partition: Partition) -> tuple[list[int], list[int]]:
        """Where the batches start, and the effective time reached behind each of them."""
        if partition not in self._running:
            part = self._parts[partition]
            self._running[partition] = await self._indexes.running(partition, part, self._ceiling)
        return self._running[partition]

    async def _look(self, partition: Partition, at: int, max_bytes: int) -> Scanned:
        fetched = await self._cluster.read(partition, at, self._rules.isolation, max_bytes=max_bytes)
        return scan_fetched(fetched, self._parts[partition].end, self._rules)

    def _rows(self, scanned: Scanned) -> Columns:
        return rows(scanned, skip_corrupt=self._rules.skip_corrupt)

    async def lasts(self, highest: Mapping[Partition, Found]) -> dict[Partition, int]:
        """By partition, the effective time of its last row, given its record with the highest time."""
        found = await asyncio.gather(*(self._last(partition, highest[partition]) for partition in self._parts))
        return dict(zip(self._parts, found, strict=True))

    async def _last(self, partition: Partition, highest: Found) -> int:
        part = self._parts[partition]
        if 0 <= highest.offset < part.start and highest.timestamp <= part.reached:
            return part.reached
        if part.start <= highest.offset < part.end and highest.timestamp <= self._ceiling:
            look = await self._look(partition, highest.offset, LOOK_BYTES)
            if highest.offset in self._rows(look).offset[:1]:  # else it was aborted
                return max(part.reached, highest.timestamp)
        _, reached = await self._index(partition)
        return reached[-1] if reached else part.reached

    async def lowest(self) -> int:
        """The effective time of the earliest first row of a partition."""
        times = [
            int(effective_times(found.timestamp[:1], self._parts[partition].reached, self._ceiling)[0])
            for partition, look in (await self._look_at_starts()).items()
            if len(found := self._rows(look))
        ]
        return max(NO_TIME, min(times, default=NO_TIME))

    async def bytes_a_row(self) -> float:
        """The mean size of a row in the log, packed, by the first rows of each partition and its share of all rows."""
        total = 0.0
        for partition, look in (await self._look_at_starts()).items():
            part = self._parts[partition]
            total += look.data.nbytes / (look.position - part.start) * (part.end - part.start)
        return max(1.0, total / self.rows)

    async def _look_at_starts(self) -> dict[Partition, Scanned]:
        filled = [partition for partition, part in self._parts.items() if part.start < part.end]
        looks = (self._look(partition, self._parts[partition].start, LOOK_BYTES) for partition in filled)
        return dict(zip(filled, await asyncio.gather(*looks), strict=True))

    async def _bracket(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Two times about all rows, with the rows before each."""
        filled = [partition for partition, part in self._parts.items() if part.start < part.end]
        low = await self.lowest()
        highest = await self._cluster.offsets(dict.fromkeys(filled, HIGHEST_TIME), self._rules.isolation)
        # Where the record of the highest time is not to be read yet, a broker does not tell it.
        times = (found.timestamp if found.offset >= 0 else self._ceiling for found in highest.values())
        high = max((min(time, self._ceiling) for time in times), default=0)
        return (low, 0), (max(low, high) + 1, self.rows)

    def _rows_before(self, offsets: Mapping[Partition, int]) -> int:
        return sum(max(0, offset - self._parts[partition].start) for partition, offset in offsets.items())
