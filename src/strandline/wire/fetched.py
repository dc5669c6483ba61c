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
from strandline.wire.records import Columns, columns


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
    return Scanned(data, list(_delivered(found, aborted)), first, end, position, corrupt)


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


def rows(scanned: Scanned, *, skip_corrupt: bool = False) -> Columns:
    """The records within the range that was asked for."""
    try:
        found = columns(scanned.data, scanned.chosen)
    except CorruptBatch as error:
        if not skip_corrupt:
            raise
        bad = next(batch for batch in scanned.chosen if batch.base_offset == error.offset)
        scanned.corrupt.append(CorruptBatch(error.problem, bad.base_offset, bad.last_offset + 1))
        rest = [batch for batch in scanned.chosen if batch is not bad]
        return rows(replace(scanned, chosen=rest), skip_corrupt=True)
    low, high = np.searchsorted(found.offset, [scanned.first, scanned.end])
    return found if (low, high) == (0, len(found)) else found.between(int(low), int(high))
