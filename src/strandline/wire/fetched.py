"""What a fetch brought of a partition: which batches in it are to be read, and their records as columns.

A fetch answers in whole batches. So the first may begin before the position that was asked for, the last may go beyond
the end that we want, and between them are markers of transactions and records of transactions that were aborted.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strandline.errors import CorruptBatch
from strandline.wire.batches import Batch, batches
from strandline.wire.codecs import Bytes
from strandline.wire.records import NO_BOUND, Columns, columns_within


@dataclass(frozen=True, slots=True)
class Scanned:
    """The batches to read, and the position behind all that was brought."""

    data: Bytes
    chosen: list[Batch]
    first: int
    end: int
    position: int
    corrupt: list[CorruptBatch]
    """The batches that were left out because they cannot be read."""
    epoch: int | None = None
    """The leader's epoch of the last batch before the position, markers included; None where that is not known."""


def scan(
    records: bytes, first: int, end: int, aborted: Sequence[tuple[int, int]] = (), *, skip_corrupt: bool = False
) -> Scanned:
    """Look through the batches from a position up to, and without, an end.

    `aborted` are the transactions that were aborted in these records, as producer and first offset.
    """
    data = np.frombuffer(records, dtype=np.uint8)
    corrupt: list[CorruptBatch] = []
    found: list[Batch] = []
    position = first
    for batch in batches(data, corrupt=corrupt if skip_corrupt else None):
        # Also where the batch lies wholly behind the end: then compaction has left nothing up to there.
        position = max(position, min(end, batch.last_offset + 1))
        if batch.base_offset >= end:
            break
        if batch.last_offset >= first:
            found.append(batch)
    corrupt = [fault for fault in corrupt if fault.offset < end and fault.next_offset > first]
    position = min(end, max([position, *(fault.next_offset for fault in corrupt)]))
    epoch = found[-1].epoch if found and found[-1].last_offset + 1 == position else None
    return Scanned(data, list(_delivered(found, aborted)), first, end, position, corrupt, epoch)


def _delivered(found: Iterable[Batch], aborted: Sequence[tuple[int, int]]) -> Iterator[Batch]:
    """The batches without markers and without what was aborted."""
    coming = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    open_: set[int] = set()
    for batch in found:
        while coming and coming[-1][1] <= batch.last_offset:
            open_.add(coming.pop()[0])
        if batch.is_control:
            # The first marker of a producer behind the start of its aborted transaction is the one that ended it.
            open_.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in open_):
            yield batch


@dataclass(frozen=True, slots=True)
class Taken:
    """The first rows of what was brought, as many as there was room for."""

    rows: Columns
    position: int
    """Where to read on: behind all that was brought, or at the first row that was left."""
    left: tuple[int, int] | None
    """The time and the bytes of that row; None where no row is known to be left."""
    growth: float
    """How many times as large records are here as they were packed."""

    def put_back(self) -> "Taken":
        """The same with no row taken."""
        row = int(self.rows.timestamp[0]), self.rows.nbytes
        return replace(self, rows=self.rows.between(0, 0), position=int(self.rows.offset[0]), left=row)


def rows(scanned: Scanned, *, skip_corrupt: bool = False) -> Columns:
    """The records within the range that was asked for."""
    return rows_within(scanned, NO_BOUND, skip_corrupt=skip_corrupt).rows


def rows_within(scanned: Scanned, room: int, *, skip_corrupt: bool = False) -> Taken:
    """The first records within the range that was asked for, in no more than so many bytes; at least one.

    A batch is unpacked as a whole, so that memory for one may be needed beyond that while it is looked at.
    """
    try:
        found, taken = columns_within(scanned.data, scanned.chosen, room)
    except CorruptBatch as error:
        if not skip_corrupt:
            raise
        bad = next(batch for batch in scanned.chosen if batch.base_offset == error.offset)
        scanned.corrupt.append(CorruptBatch(error.problem, bad.base_offset, bad.last_offset + 1))
        rest = [batch for batch in scanned.chosen if batch is not bad]
        return rows_within(replace(scanned, chosen=rest), room, skip_corrupt=True)
    packed = sum(batch.end - batch.start for batch in scanned.chosen[:taken])
    growth = found.nbytes / packed if packed else 1.0
    is_all = taken == len(scanned.chosen)
    position = scanned.position if is_all else max(scanned.first, scanned.chosen[taken].base_offset)
    low, high = (int(place) for place in np.searchsorted(found.offset, [scanned.first, scanned.end]))
    if found.nbytes <= room or low == high:
        return Taken(found.between(low, high), position, None, growth)
    ends = found.ends
    fitting = max(low + 1, int(np.searchsorted(ends, ends[low] + room, side="right")) - 1)
    if fitting >= high:
        return Taken(found.copied(low, high), position, None, growth)
    left = int(found.timestamp[fitting]), int(ends[fitting + 1] - ends[fitting])
    return Taken(found.copied(low, fitting), int(found.offset[fitting]), left, growth)


def holes(scanned: Scanned, found: Columns) -> list[tuple[int, int]]:
    """Stretches, each from an offset up to another, that had records once: compaction has taken them away.

    Markers and what was aborted are none. Where compaction has taken those away too, it cannot be told from records.
    """
    read = {batch.base_offset for batch in scanned.chosen}
    there = [
        (batch.base_offset, batch.last_offset + 1)
        for batch in batches(scanned.data, check=False, corrupt=[])
        if batch.base_offset not in read
    ]
    there += [(fault.offset, fault.next_offset) for fault in scanned.corrupt]
    if len(found):
        breaks = np.flatnonzero(np.diff(found.offset) != 1)
        lows, highs = found.offset[np.append(0, breaks + 1)], found.offset[np.append(breaks, len(found) - 1)]
        there += zip(lows.tolist(), (highs + 1).tolist(), strict=True)
    missing = []
    at = scanned.first
    for low, high in sorted(there):
        if low >= scanned.position:
            break
        if low > at:
            missing.append((at, low))
        at = max(at, high)
    if at < scanned.position:
        missing.append((at, scanned.position))
    return missing
