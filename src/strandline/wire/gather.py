"""Rows out of their arenas into Arrow, in any order: each byte of a key, value or header is copied once."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from strandline.errors import OptionError
from strandline.wire.codecs import Bytes
from strandline.wire.kernel import kernel
from strandline.wire.memory import copy_bytes
from strandline.wire.records import (
    HEADERS,
    HEADERS_START,
    KEY_LENGTH,
    KEY_START,
    NULL,
    OFFSET,
    TIMESTAMP,
    VALUE_LENGTH,
    VALUE_START,
    Columns,
    _varint,
)

# Arrow's places within a column have 31 bits.
MOST_BYTES = 2**31 - 1
TOO_LARGE = -1

Ints = NDArray[np.int32]
Table = NDArray[np.int64]

HEADER = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("headers", pa.list_(HEADER), nullable=False),
    ]
)


class Gather:
    """Brings rows of several partitions, given as topic and number, into one batch."""

    def __init__(self, names: Sequence[tuple[str, int]]) -> None:
        topics = sorted({topic for topic, _ in names})
        self._topics = _strings([topic.encode() for topic in topics])
        self._topic_of = np.array([topics.index(topic) for topic, _ in names], dtype=np.int32)
        self._number_of = np.array([number for _, number in names], dtype=np.int32)
        self.nothing = self.batch(np.empty(0, dtype=np.int32), [])
        """A batch of no rows."""

    def batch(self, order: Ints, sources: Sequence[Sequence[Columns]]) -> pa.RecordBatch:
        """Rows in order: for each the partition whose next row it is, and by partition exactly those rows."""
        count = len(order)
        # By partition, and within one in order, the places where its rows go.
        narrow = order.astype(np.uint16) if len(sources) <= 1 << 16 else order
        places = np.argsort(narrow, kind="stable").astype(np.int32)
        pieces: list[tuple[Columns, Ints]] = []
        at = 0
        for columns in (columns for source in sources for columns in source):
            pieces.append((columns, places[at : at + len(columns)]))
            at += len(columns)
        plan = np.empty((5, count), dtype=np.int64)
        offset, timestamp, key_length, value_length, header_count = plan
        for columns, where in pieces:
            _plan(columns.table, where, offset, timestamp, key_length, value_length, header_count)
        topic = _numbers(pa.int32(), self._topic_of[order])
        return pa.RecordBatch.from_arrays(
            [
                _binary(pieces, key_length, KEY_START),
                _binary(pieces, value_length, VALUE_START),
                pa.DictionaryArray.from_arrays(topic, self._topics),
                _numbers(pa.int32(), self._number_of[order]),
                _numbers(pa.int64(), offset),
                _numbers(SCHEMA.field("timestamp").type, timestamp, valid=timestamp >= 0),
                _headers(pieces, header_count),
            ],
            schema=SCHEMA,
        )


# Arrays are made from buffers throughout: `pyarrow.array` imports pandas the first time, which takes half a second.


def _numbers(type_: pa.DataType, values: NDArray[Any], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    bitmap = None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [bitmap, pa.py_buffer(values)])


def _strings(values: Sequence[bytes]) -> pa.Array:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(values), [None, *map(pa.py_buffer, (ends, b"".join(values)))])


def _binary(pieces: Iterable[tuple[Columns, Ints]], lengths: Table, field: int) -> pa.Array:
    count = len(lengths)
    ends_buffer = pa.allocate_buffer(4 * (count + 1))
    ends = np.frombuffer(ends_buffer, dtype=np.int32)
    nulls = _checked_ends(lengths, ends)
    bytes_buffer = pa.allocate_buffer(int(ends[-1]))
    out = np.frombuffer(bytes_buffer, dtype=np.uint8)
    for columns, where in pieces:
        _copy(columns.arena, columns.table, field, where, ends, out)
    return pa.Array.from_buffers(pa.binary(), count, [_validity(lengths, nulls), ends_buffer, bytes_buffer], nulls)


def _checked_ends(lengths: Table, ends: Ints) -> int:
    nulls = int(_ends(lengths, ends))
    if nulls == TOO_LARGE:
        raise OptionError(f"{len(lengths):,} rows have more than {MOST_BYTES:,} bytes in a column; ask for fewer rows")
    return nulls


def _validity(lengths: Table, nulls: int) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(lengths != NULL, bitorder="little")) if nulls else None


def _headers(pieces: Sequence[tuple[Columns, Ints]], counts: Table) -> pa.Array:
    firsts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=firsts[1:])
    total = int(firsts[-1])
    lengths = np.empty((2, total), dtype=np.int64)
    for columns, where in pieces:
        _measure_headers(columns.arena, columns.table, where, firsts, lengths)
    ends = np.empty((2, total + 1), dtype=np.int32)
    nulls = [_checked_ends(lengths[field], ends[field]) for field in range(2)]
    out = [np.empty(ends[field, -1], dtype=np.uint8) for field in range(2)]
    for columns, where in pieces:
        _copy_headers(columns.arena, columns.table, where, firsts, ends, out[0], out[1])
    keys, values = (
        pa.Array.from_buffers(
            type_, total, [_validity(lengths[field], nulls[field]), *map(pa.py_buffer, (ends[field], out[field]))]
        )
        for field, type_ in enumerate((pa.string(), pa.binary()))
    )
    items = pa.StructArray.from_arrays([_text(keys), values], fields=list(HEADER))
    return pa.ListArray.from_arrays(_numbers(pa.int32(), firsts), items)


def _text(array: pa.StringArray) -> pa.StringArray:
    """The same, with what is not UTF-8 replaced: a header's key is text by agreement only."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _strings([item.decode(errors="replace").encode() for item in array.view(pa.binary()).to_pylist()])
    return array


@kernel("void(int64[:, :], int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _plan(  # noqa: PLR0917  (a kernel)
    table: Table, where: Ints, offset: Table, timestamp: Table, key: Table, value: Table, headers: Table
) -> None:
    for row in range(len(where)):
        to = where[row]
        offset[to] = table[OFFSET, row]
        timestamp[to] = table[TIMESTAMP, row]
        key[to] = table[KEY_LENGTH, row]
        value[to] = table[VALUE_LENGTH, row]
        headers[to] = table[HEADERS, row]


@kernel("int64(int64[::1], int32[::1])")
def _ends(lengths: Table, ends: Ints) -> int:
    """Where each item ends when they follow each other; how many are null, or TOO_LARGE."""
    end = nulls = 0
    ends[0] = 0
    for row in range(len(lengths)):
        if lengths[row] == NULL:
            nulls += 1
        else:
            end += lengths[row]
        if end > MOST_BYTES:
            return TOO_LARGE
        ends[row + 1] = end
    return nulls


@kernel("void(uint8[::1], int64[:, :], int64, int32[::1], int32[::1], uint8[::1])")
def _copy(  # noqa: PLR0917  (a kernel)
    arena: Bytes, table: Table, field: int, where: Ints, ends: Ints, out: Bytes
) -> None:
    for row in range(len(where)):
        copy_bytes(out, ends[where[row]], arena, table[field, row], max(0, table[field + 1, row]))


@kernel("void(uint8[::1], int64[:, :], int32[::1], int32[::1], int64[:, ::1])")
def _measure_headers(arena: Bytes, table: Table, where: Ints, firsts: Ints, lengths: Table) -> None:
    """The lengths of all keys and values of headers. They were checked when the records were."""
    for row in range(len(where)):
        at = table[HEADERS_START, row]
        first = firsts[where[row]]
        for header in range(first, first + table[HEADERS, row]):
            for field in range(2):
                length, at = _varint(arena, at, len(arena))
                lengths[field, header] = length
                at += max(length, 0)


@kernel("void(uint8[::1], int64[:, :], int32[::1], int32[::1], int32[:, ::1], uint8[::1], uint8[::1])")
def _copy_headers(  # noqa: PLR0917  (a kernel)
    arena: Bytes, table: Table, where: Ints, firsts: Ints, ends: Ints, keys: Bytes, values: Bytes
) -> None:
    for row in range(len(where)):
        at = table[HEADERS_START, row]
        first = firsts[where[row]]
        for header in range(first, first + table[HEADERS, row]):
            length, at = _varint(arena, at, len(arena))
            copy_bytes(keys, ends[0, header], arena, at, length)
            at += length
            length, at = _varint(arena, at, len(arena))
            copy_bytes(values, ends[1, header], arena, at, max(length, 0))
            at += max(length, 0)
