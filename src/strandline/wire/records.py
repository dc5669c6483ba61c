"""Records to columns: no Python object per record.

All batches of one fetch are unpacked into one buffer, the arena. A kernel walks it once and notes for each record its
offset, its time, and where its key, value and headers lie. Nothing is copied out of the arena until rows are gathered.

The kernel reads no byte outside its batch, whatever the bytes say: every length is checked before it is followed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strandline.errors import CorruptBatch
from strandline.wire.batches import Batch
from strandline.wire.codecs import Bytes, NoRoom, unpack
from strandline.wire.kernel import kernel

OFFSET, TIMESTAMP, KEY_START, KEY_LENGTH, VALUE_START, VALUE_LENGTH, HEADERS_START, HEADERS = FIELDS = range(8)
NULL = -1
# Of the table.
ROW_BYTES = 8 * len(FIELDS)
# No batch has this time: its records have times of their own.
OWN_TIME = -(2**63)
MAX_ARENA_BYTES = 1 << 30
NO_BOUND = 2**63 - 1
# The smallest record: a length, attributes, two deltas, two lengths and a count, of a byte each.
SMALLEST_RECORD = 7
FIRST_GUESS = 4

Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """Records in offset order: the bytes that they lie in, and for each field one row of numbers in the table."""

    arena: Bytes
    table: NDArray[np.int64]
    """By field; see OFFSET and those below it. Starts are places in the arena; a length of -1 is null."""

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def offset(self) -> Longs:
        offset: Longs = self.table[OFFSET]
        return offset

    @property
    def timestamp(self) -> Longs:
        timestamp: Longs = self.table[TIMESTAMP]
        return timestamp

    @property
    def nbytes(self) -> int:
        """What it keeps in memory, all of its arena included."""
        return self.arena.nbytes + self.table.nbytes

    @property
    def ends(self) -> Longs:
        """By row, the bytes of it and of all rows before it; 0 first. Only of all rows of an arena."""
        ends: Longs = np.append(self.table[KEY_START], self.arena.nbytes)
        ends += np.arange(len(ends)) * ROW_BYTES - ends[0]
        return ends

    def copied(self, low: int, high: int) -> "Columns":
        """Some of the rows, on an arena of their own. Only of all rows of an arena."""
        start = self.table[KEY_START, low]
        end = self.table[KEY_START, high] if high < len(self) else self.arena.nbytes
        table = self.table[:, low:high].copy()
        table[[KEY_START, VALUE_START, HEADERS_START]] -= start
        return Columns(self.arena[start:end].copy(), table)

    def between(self, low: int, high: int) -> "Columns":
        """Some of the rows, on the same arena."""
        return Columns(self.arena, self.table[:, low:high])


def columns(data: Bytes, chosen: Iterable[Batch]) -> Columns:
    """The records of some of the batches in `data`, in the order given."""
    return columns_within(data, list(chosen), NO_BOUND)[0]


def columns_within(data: Bytes, chosen: list[Batch], most: int) -> tuple[Columns, int]:
    """The records of the first batches, until they have so many bytes here; and how many batches those are."""
    arena, ends = _unpack_all(data, chosen, most)
    taken = chosen[: len(ends)]
    for batch, start, end in zip(taken, [0, *ends], ends, strict=False):
        if batch.records > (end - start) // SMALLEST_RECORD:
            raise CorruptBatch(f"{batch.records} records in {end - start} bytes", batch.base_offset)
    table = np.empty((len(FIELDS), sum(batch.records for batch in taken)), dtype=np.int64)
    at = row = 0
    for batch, end in zip(taken, ends, strict=True):
        stamp = batch.max_timestamp if batch.is_stamped_by_the_broker else OWN_TIME
        offsets = batch.base_offset, batch.last_offset
        bad = _parse(arena, at, end, *offsets, batch.base_timestamp, stamp, table[:, row : row + batch.records])
        if bad >= 0:
            raise CorruptBatch(f"its record {bad} is malformed", batch.base_offset)
        at, row = end, row + batch.records
    return Columns(arena, table), len(taken)


def _unpack_all(data: Bytes, chosen: list[Batch], most: int) -> tuple[Bytes, list[int]]:
    """The records of the first batches, unpacked, and where each ends; at least one batch, and none behind the most."""
    packed = sum(batch.end - batch.start for batch in chosen)
    is_packed = any(batch.codec for batch in chosen)
    arena = np.empty(packed * FIRST_GUESS if is_packed else packed, dtype=np.uint8)
    ends: list[int] = []
    at = records = 0
    for batch in chosen:
        if ends and at + records * ROW_BYTES >= most:
            break
        records += batch.records
        while batch.records:
            try:
                at += unpack(batch.codec, data[batch.start : batch.end], arena[at:])
                break
            except NoRoom:
                if len(arena) >= MAX_ARENA_BYTES:
                    raise CorruptBatch(f"unpacks to more than {MAX_ARENA_BYTES:,} bytes", batch.base_offset) from None
                larger = np.empty(min(MAX_ARENA_BYTES, 2 * len(arena) + 65_536), dtype=np.uint8)
                larger[:at] = arena[:at]
                arena = larger
            except CorruptBatch as error:
                raise CorruptBatch(error.problem, batch.base_offset) from None
        ends.append(at)
    return arena[:at], ends


@kernel("Tuple((int64, int64))(uint8[::1], int64, int64)", inline="always")
def _varint(arena: Bytes, at: int, end: int) -> tuple[int, int]:
    """A zigzag varint, and the place after it; the place is -1 when it does not end in time."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(arena[at])
        at += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at  # type: ignore[return-value]
        shift += np.uint64(7)
    return 0, -1


@kernel("int64(uint8[::1], int64, int64, int64, int64, int64, int64, int64[:, :])")
def _parse(  # noqa: PLR0911, PLR0917  (a kernel: it takes plain numbers, and leaves at the first fault)
    arena: Bytes,
    at: int,
    end: int,
    base_offset: int,
    last_offset: int,
    base_timestamp: int,
    stamp: int,
    table: NDArray[np.int64],
) -> int:
    """Note where everything is; the number of the first record that is malformed, or -1."""
    previous = base_offset - 1
    for row in range(table.shape[1]):
        length, at = _varint(arena, at, end)
        if at < 0 or length < 1 or length > end - at:
            return row
        stop = at + length
        delta, at = _varint(arena, at + 1, stop)  # behind the attributes, of which none are defined
        if at < 0:
            return row
        table[TIMESTAMP, row] = base_timestamp + delta if stamp == OWN_TIME else stamp
        delta, at = _varint(arena, at, stop)
        offset = base_offset + delta
        if at < 0 or offset <= previous or offset > last_offset:
            return row
        table[OFFSET, row] = previous = offset
        for field in (KEY_START, VALUE_START):
            length, at = _varint(arena, at, stop)
            if at < 0 or length < NULL or length > stop - at:
                return row
            table[field, row] = at
            table[field + 1, row] = length
            at += max(length, 0)
        headers, at = _varint(arena, at, stop)
        if at < 0 or headers < 0 or headers > stop - at:
            return row
        table[HEADERS_START, row] = at
        table[HEADERS, row] = headers
        for _ in range(headers):
            for shortest in (0, NULL):  # a header's key is never null, its value may be
                length, at = _varint(arena, at, stop)
                if at < 0 or length < shortest or length > stop - at:
                    return row
                at += max(length, 0)
        if at != stop:
            return row
    return -1 if at == end else table.shape[1] - 1


def headers_at(arena: Bytes, at: int, count: int) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of one record. They were checked when the record was."""
    found = []
    for _ in range(count):
        length, at = _varint(arena, at, len(arena))
        key = bytes(arena[at : at + length]).decode(errors="replace")
        length, at = _varint(arena, at + length, len(arena))
        found.append((key, None if length == NULL else bytes(arena[at : at + length])))
        at += max(length, 0)
    return tuple(found)
