"""What the headers of record batches say of the times in a partition: read once, and kept from one epoch to the next.

For each batch it is the highest time in it that counts, under the ceiling of the moment at which it was read. It counts
the same under any ceiling from there up to the next time in the batch; a batch of which that is no longer so is read
again. What is before the start that is asked for is forgotten. Where there are too many batches, neighbours become one:
the index gets coarser, not wrong.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from strandline.core.ordering import BEFORE_ALL_TIME, END_OF_TIME
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.ordered.merge import Part
from strandline.ordered.reading import Rules, scan_fetched
from strandline.wire.batches import Batch
from strandline.wire.fetched import Scanned, rows

LOOK_BYTES = 64 << 10
INDEX_BYTES = 4 << 20
MOST_BATCHES = 1_000_000


class _Times(NamedTuple):
    """The highest time that counts, and the lowest that is above the ceiling."""

    highest: int
    above: int


class _Log:
    """The batches of a partition that are known, from `first` up to `end`; 24 bytes each."""

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.starts = array("q")
        self.highest = array("q")
        self.above = array("q")

    def add(self, start: int, times: _Times) -> None:
        self.starts.append(start)
        self.highest.append(times.highest)
        self.above.append(times.above)

    def forget_before(self, start: int) -> None:
        gone = max(0, bisect_right(self.starts, start) - 1)
        self.first = start
        for column in (self.starts, self.highest, self.above):
            del column[:gone]

    def make_coarser(self) -> None:
        pairs = range(0, len(self.starts), 2)
        self.highest = array("q", (max(self.highest[n : n + 2]) for n in pairs))
        self.above = array("q", (min(self.above[n : n + 2]) for n in pairs))
        self.starts = self.starts[::2]


class Indexes:
    """The indexes of some partitions."""

    def __init__(self, cluster: Cluster, rules: Rules, most_batches: int = MOST_BATCHES) -> None:
        self._cluster = cluster
        self._rules = rules
        self._most_batches = most_batches
        self._logs: dict[Partition, _Log] = {}

    @property
    def batches(self) -> int:
        """How many are kept, neighbours that became one counted once."""
        return sum(len(log.starts) for log in self._logs.values())

    def forget_all_but(self, partitions: Collection[Partition]) -> None:
        """Keep what is known of these only."""
        self._logs = {partition: log for partition, log in self._logs.items() if partition in partitions}

    async def running(self, partition: Partition, part: Part, ceiling: int) -> tuple[list[int], list[int]]:
        """Where the batches of a part start, and the effective time that it has reached behind each of them.

        Behind the last one that may be too late a time, where more is known than the part has: its end is within it.
        """
        log = self._logs.get(partition)
        if log is None or not log.first <= part.start <= log.end:
            log = self._logs[partition] = _Log(part.start)
        log.forget_before(part.start)
        await self._correct(partition, log, part, ceiling)
        while log.end < part.end:
            scanned = await self._look(partition, log.end, part.end, INDEX_BYTES)
            for batch in scanned.chosen:
                log.add(max(log.end, batch.base_offset), self._times(scanned, batch, ceiling))
            log.end = scanned.position
            while len(log.starts) > max(1, self._most_batches // len(self._logs)):
                log.make_coarser()
        count = bisect_left(log.starts, part.end)
        reached = np.maximum(np.maximum.accumulate(np.array(log.highest[:count])), part.reached)
        return [max(part.start, start) for start in log.starts[:count]], reached.tolist()

    async def _correct(self, partition: Partition, log: _Log, part: Part, ceiling: int) -> None:
        """Read again what does not hold under this ceiling."""
        stale = (np.array(log.highest) > ceiling) | (np.array(log.above) <= ceiling)
        for place in np.flatnonzero(stale).tolist():
            at = max(part.start, log.starts[place])
            end = log.starts[place + 1] if place + 1 < len(log.starts) else log.end
            highest, above = BEFORE_ALL_TIME, END_OF_TIME
            while at < end:
                scanned = await self._look(partition, at, end, LOOK_BYTES)
                for batch in scanned.chosen:
                    times = self._times(scanned, batch, ceiling)
                    highest, above = max(highest, times.highest), min(above, times.above)
                at = scanned.position
            log.highest[place], log.above[place] = highest, above

    async def _look(self, partition: Partition, at: int, end: int, max_bytes: int) -> Scanned:
        fetched = await self._cluster.read(partition, at, self._rules.isolation, max_bytes=max_bytes)
        return scan_fetched(fetched, end, self._rules)

    def _times(self, scanned: Scanned, batch: Batch, ceiling: int) -> _Times:
        """By the header; where that has a stray date, by the records."""
        if batch.max_timestamp <= ceiling:
            return _Times(batch.max_timestamp, END_OF_TIME)
        stamps = rows(replace(scanned, chosen=[batch]), skip_corrupt=self._rules.skip_corrupt).timestamp
        counted = stamps <= ceiling
        return _Times(int(stamps[counted].max(initial=BEFORE_ALL_TIME)), int(stamps[~counted].min(initial=END_OF_TIME)))
