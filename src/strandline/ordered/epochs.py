"""Epochs of an unbounded log: how far each may go, so that none has a row earlier than the epoch before it.

The rules that this file keeps:

1. An epoch takes every row up to a time, the *low watermark*: the earliest of the times that the partitions with unread
   rows have reached. A partition with nothing unread does not hold it.
2. A row that comes for a time which an epoch has passed is taken by the next epoch, and is *late*.
3. A position in the log (`Position`) says all that is needed to read on, or to read the same rows again: offsets, the
   low watermark, and the effective time that each partition has reached.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from strandline.core.ordering import BEFORE_ALL_TIME
from strandline.core.slicing import Cut, low_watermark
from strandline.errors import OffsetOutOfRange
from strandline.kafka.cluster import EARLIEST, HIGHEST_TIME, LATEST, Cluster, Isolation
from strandline.kafka.partition import Partition
from strandline.ordered.index import Indexes
from strandline.ordered.merge import Part
from strandline.ordered.reading import Loss, Rules
from strandline.ordered.slices import Slicer


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place between two epochs."""

    offsets: Mapping[Partition, int]
    time: int = BEFORE_ALL_TIME
    """The low watermark: later epochs have no earlier row, but for late ones."""
    reached: Mapping[Partition, int] = field(default_factory=dict)
    begins: Mapping[Partition, int] = field(default_factory=dict)
    """Where the epoch that ends here begins, by partition of which it has something."""
    ceiling: int = 0
    """The time above which timestamps do not count in the epoch that ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much an epoch may have; None is no limit."""

    rows: int | None = None
    bytes: int | None = None
    """As they lie in the log, packed; by the mean size of the rows at hand."""
    span: timedelta | None = None


class Epochs:
    """Looks how far the next epoch may go."""

    def __init__(self, cluster: Cluster, topics: list[str], rules: Rules) -> None:
        self._cluster = cluster
        self._topics = topics
        self._rules = rules
        self._indexes = Indexes(cluster, rules)

    async def ends(self) -> dict[Partition, int]:
        """The end of each partition, as far as it may be read now."""
        return await self._offsets(await self._cluster.partitions(self._topics), LATEST, self._rules.isolation)

    async def _offsets(self, partitions: Iterable[Partition], which: int, isolation: Isolation) -> dict[Partition, int]:
        found = await self._cluster.offsets(dict.fromkeys(partitions, which), isolation)
        return {partition: at.offset for partition, at in found.items()}

    async def next(
        self, start: Position, limits: Limits, ceiling: int, ends: Mapping[Partition, int] | None = None
    ) -> Position:
        """Where the epoch that begins at a position ends; the same position if there is nothing to read.

        With `ends`, nothing behind them is read.
        """
        partitions = await self._cluster.partitions(self._topics)
        # Asked before the ends, so that the record with the highest time lies before the end.
        highest = await self._cluster.offsets(dict.fromkeys(partitions, HIGHEST_TIME), self._rules.isolation)
        now = await self._offsets(partitions, LATEST, self._rules.isolation)
        unread = await self._unread(
            start, {p: min(end, (now if ends is None else ends).get(p, 0)) for p, end in now.items()}
        )
        if not unread:
            return start
        self._indexes.forget_all_but(unread)
        slicer = self.slicer(unread, ceiling)
        reached = await slicer.lasts(highest)
        watermark = low_watermark(start.time, reached.values())
        if limits.span is not None:
            watermark = max(
                start.time, min(watermark, await slicer.lowest() + limits.span // timedelta(milliseconds=1))
            )
        cut = Cut(watermark, await slicer.firsts(watermark + 1))
        most = await self._most_rows(limits, slicer)
        taken = sum(offset - unread[partition].start for partition, offset in cut.offsets.items())
        if most is not None and taken > most:
            within = {p: replace(part, end=cut.offsets[p]) for p, part in unread.items()}
            cut = await self.slicer(within, ceiling).cut_behind(most)
        return _behind(start, cut, unread, reached, ceiling)

    def slicer(self, parts: Mapping[Partition, Part], ceiling: int) -> Slicer:
        """Finds rows by time in unread parts; what it reads of headers is kept for the epochs to come."""
        return Slicer(self._cluster, parts, self._rules, ceiling, self._indexes)

    async def _unread(self, start: Position, ends: Mapping[Partition, int]) -> dict[Partition, Part]:
        """What is there to read; a partition that is new from its start."""
        earliest = await self._offsets(ends, EARLIEST, self._rules.isolation)
        firsts = {
            **earliest,
            **{partition: start.offsets[partition] for partition in ends if partition in start.offsets},
        }
        await self._check(firsts, earliest, ends)
        return {
            partition: Part(
                start=max(firsts[partition], earliest[partition]),
                end=end,
                reached=start.reached.get(partition, BEFORE_ALL_TIME),
            )
            for partition, end in ends.items()
            if max(firsts[partition], earliest[partition]) < end
        }

    async def _check(
        self, firsts: Mapping[Partition, int], earliest: Mapping[Partition, int], ends: Mapping[Partition, int]
    ) -> None:
        """Refuse to go on where the log has ended before our position, or begins behind it."""
        ahead = [partition for partition, first in firsts.items() if first > ends[partition]]
        latest = await self._offsets(ahead, LATEST, Isolation.READ_UNCOMMITTED)
        for partition, first in firsts.items():
            is_missing = first < earliest[partition] and not self._rules.skip_missing
            if is_missing or first > latest.get(partition, first):
                end = latest.get(partition, ends[partition])
                raise OffsetOutOfRange(partition, asked=first, earliest=earliest[partition], latest=end)

    async def _most_rows(self, limits: Limits, slicer: Slicer) -> int | None:
        by_bytes = None if limits.bytes is None else int(limits.bytes / await slicer.bytes_a_row())
        most = [limit for limit in (limits.rows, by_bytes) if limit is not None]
        return max(1, min(most)) if most else None

    async def parts(self, start: Position, end: Position) -> tuple[dict[Partition, Part], list[Loss]]:
        """What an epoch reads, and what of it the brokers have deleted."""
        await self._cluster.partitions(self._topics)
        # As it was planned, whatever a broker or a clock says of its start by now.
        begins = end.begins
        parts = await self._unread(replace(start, offsets=begins), {p: end.offsets[p] for p in begins})
        lost = {p: parts[p].start if p in parts else end.offsets[p] for p in begins}
        losses = [
            Loss(partition, first, lost[partition], "the broker has deleted them")
            for partition, first in begins.items()
            if lost[partition] > first
        ]
        return parts, losses


def _behind(
    start: Position, cut: Cut[Partition], unread: Mapping[Partition, Part], lasts: Mapping[Partition, int], ceiling: int
) -> Position:
    """The position behind a cut."""
    reached = dict(start.reached)
    for partition, part in unread.items():
        offset = cut.offsets[partition]
        if offset == part.end:
            reached[partition] = lasts[partition]
        elif offset > part.start:
            # What follows is of the cut's time or later, whatever came before.
            reached[partition] = max(part.reached, cut.time)
    return Position(
        offsets={**start.offsets, **cut.offsets},
        time=max(start.time, cut.time),
        reached=reached,
        begins={p: start.offsets.get(p, part.start) for p, part in unread.items() if cut.offsets[p] > part.start},
        ceiling=ceiling,
    )
