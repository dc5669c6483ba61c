"""What is kept back for a slow client on channels of `conflate`: the latest record of each key, and what is lost.

It comes in the order of the offsets, with the gaps between: a client that is cut off in the middle has been told of
everything before the last that it heard.
"""

from bisect import bisect_left
from collections.abc import Iterator

from strandline.core.gap import Gap, Reason
from strandline.gateway.feed import RECORD_BYTES, Feed, Item, Record

# Gaps that are not joined yet, beyond two for each record.
LOOSE = 100


class Kept:
    """By partition, channel and key."""

    __slots__ = ("_partitions", "nbytes")

    def __init__(self) -> None:
        self._partitions: dict[Feed, _Partition] = {}
        self.nbytes = 0

    def __bool__(self) -> bool:
        return bool(self._partitions)

    def put(self, feed: Feed, record: Record) -> None:
        """Keep a record in place of the one before it of its key."""
        before = self._of(feed).put(record)
        self.nbytes += _size(record) - (0 if before is None else _size(before))

    def miss(self, feed: Feed, gap: Gap) -> None:
        """Keep what is told behind all that is kept of a partition."""
        partition = self._of(feed)
        # What was cut off it has seen, and is to be told; anything else that is missing it has not.
        partition.first = min(partition.first, gap.end if gap.reason is Reason.TRUNCATED else gap.first)
        partition.gaps.append(gap)

    def _of(self, feed: Feed) -> "_Partition":
        return self._partitions.setdefault(feed, _Partition())

    def firsts(self) -> dict[Feed, int]:
        """The first offset of each partition that has not been sent or told yet."""
        return {feed: partition.first for feed, partition in self._partitions.items()}

    def take(self) -> Iterator[tuple[Feed, Item]]:
        """All that is kept, partition by partition, in order."""
        partitions, self._partitions, self.nbytes = self._partitions, {}, 0
        for feed, partition in partitions.items():
            for item in partition.items():
                yield feed, item


class _Partition:
    """One partition: the latest records in the order of their offsets, and gaps in any."""

    __slots__ = ("first", "gaps", "latest")

    def __init__(self) -> None:
        self.first = 2**63 - 1
        self.latest: dict[tuple[str, bytes | None], Record] = {}
        self.gaps: list[Gap] = []

    def put(self, record: Record) -> Record | None:
        self.first = min(self.first, record.offset)
        before = self.latest.pop((record.channel, record.key), None)
        self.latest[record.channel, record.key] = record
        if before is not None:
            self.gaps.append(Gap(before.offset, before.offset + 1, Reason.CONFLATED))
            if len(self.gaps) > 2 * len(self.latest) + LOOSE:
                self._join()
        return before

    def _join(self) -> None:
        """Make one gap of those that no record lies between: what does is not for this client."""
        offsets = [record.offset for record in self.latest.values()]
        joined: list[Gap] = []
        for gap in sorted(self.gaps, key=_place):
            last = joined[-1] if joined else None
            if (
                last is not None
                and last.reason is gap.reason is Reason.CONFLATED
                and bisect_left(offsets, last.end) == bisect_left(offsets, gap.first)
            ):
                joined[-1] = Gap(last.first, gap.end, Reason.CONFLATED)
            else:
                joined.append(gap)
        self.gaps = joined

    def items(self) -> list[Item]:
        self._join()
        return sorted([*self.gaps, *self.latest.values()], key=_place)


def _place(item: Item) -> tuple[int, bool]:
    """Where it comes: a gap that was told behind what came, before what came after it."""
    if isinstance(item, Gap):
        return item.first if item.reason is Reason.CONFLATED else item.end, False
    return item.offset, True


def _size(record: Record) -> int:
    return len(record.frame) + RECORD_BYTES
