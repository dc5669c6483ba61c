"""What a fetch brings is read within the range asked for, without markers and without what was aborted."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptBatch
from strandline.wire.batches import CONTROL, TRANSACTIONAL
from strandline.wire.fetched import rows, rows_within, scan
from strandline.wire.gather import Gather
from tests.wire.encoder import Record, batch

PLAIN = -1


def write(base: int, count: int, *, producer: int = PLAIN, control: bool = False, epoch: int = 7) -> bytes:
    attributes = (TRANSACTIONAL if producer != PLAIN else 0) | (CONTROL if control else 0)
    records = [Record(base + n, 0, b"\0\0\0\0" if control else None, b"x") for n in range(count)]
    return batch(records, base_offset=base, attributes=attributes, producer_id=producer, epoch=epoch)


@given(st.lists(st.tuples(st.integers(PLAIN, 3), st.integers(1, 4)), max_size=25), st.randoms(use_true_random=False))
def test_committed_records_are_read_and_aborted_ones_are_not(
    writes: list[tuple[int, int]], chance: random.Random
) -> None:
    wire, at = b"", 0
    pending: dict[int, list[int]] = {}
    committed: list[int] = []
    aborted: list[tuple[int, int]] = []
    for producer, count in [*writes, *((producer, 0) for producer in range(4))]:
        if producer in pending and (not count or chance.random() < 0.4):
            offsets = pending.pop(producer)
            if chance.random() < 0.5:
                aborted.append((producer, offsets[0]))
            else:
                committed += offsets
            wire += write(at, 1, producer=producer, control=True)
            at += 1
        if count:
            (committed if producer == PLAIN else pending.setdefault(producer, [])).extend(range(at, at + count))
            wire += write(at, count, producer=producer)
            at += count
    chance.shuffle(aborted)
    scanned = scan(wire, 0, at, aborted)
    assert scanned.position == at
    assert rows(scanned).offset.tolist() == sorted(committed)


def test_the_epoch_is_that_of_the_last_batch_also_where_that_is_a_marker() -> None:
    wire = write(0, 3, producer=1, epoch=5) + write(3, 1, producer=1, control=True, epoch=6)
    assert (scan(wire, 0, 10).position, scan(wire, 0, 10).epoch) == (4, 6)
    assert scan(wire, 0, 2).epoch is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_nothing_outside_the_range_is_read_and_nothing_in_it_is_left_out(sizes: list[int], data: st.DataObject) -> None:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    wire = b"".join(write(end - size, size) for end, size in zip(ends, sizes, strict=True))
    first = data.draw(st.integers(0, ends[-1]))
    end = data.draw(st.integers(first, ends[-1] + 3))
    scanned = scan(wire, first, end)
    assert scanned.position == min(end, ends[-1])
    assert rows(scanned).offset.tolist() == list(range(first, min(end, ends[-1])))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_what_there_is_no_room_for_is_left_and_comes_the_next_time(sizes: list[int], data: st.DataObject) -> None:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    first = data.draw(st.integers(0, ends[-1] - 1))
    wire = b"".join(
        batch(
            [Record(n, 7 * n, b"key", f"{n}".encode() * 9, ((b"h", None),)) for n in range(end - size, end)],
            base_offset=end - size,
            codec=data.draw(st.sampled_from(["none", "zstd"])),
        )
        for end, size in zip(ends, sizes, strict=True)
    )
    whole = rows(scan(wire, first, ends[-1]))
    gather = Gather([("t", 0)])
    found = []
    position = first
    while position < ends[-1]:
        room = data.draw(st.integers(0, 1000))
        taken = rows_within(scan(wire, position, ends[-1]), room)
        assert taken.rows.offset.tolist() == list(range(position, taken.position))
        assert len(taken.rows) == 1 or taken.rows.nbytes <= room
        if taken.left is not None:
            assert taken.left[0] == 7 * taken.position
        back = taken.put_back()
        assert (len(back.rows), back.position, back.left and back.left[0]) == (0, position, 7 * position)
        found.append(taken.rows)
        position = taken.position
    order = np.zeros(len(whole), dtype=np.int32)
    assert gather.batch(order, [found]) == gather.batch(order, [[whole]])


@pytest.mark.parametrize("end", [5, 12, 49, 50])
def test_a_hole_that_compaction_left_before_the_end_is_passed(end: int) -> None:
    wire = write(0, 5) + write(50, 5)
    scanned = scan(wire, 0, end)
    assert (scanned.position, len(rows(scanned))) == (end, 5)
    assert scan(write(50, 5), 5, end).position == end


def test_a_batch_from_which_every_record_was_compacted_away_moves_the_position() -> None:
    wire = batch([], base_offset=5, last_offset=9)
    scanned = scan(wire, 5, 20)
    assert (scanned.position, len(rows(scanned))) == (10, 0)


def test_a_damaged_batch_ends_the_reading_or_is_passed_over_and_told() -> None:
    damaged = bytearray(write(3, 4))
    damaged[-1] ^= 1
    unpackable = batch([], base_offset=9, last_offset=9, records_told=1)
    wire = write(0, 3) + bytes(damaged) + write(7, 2) + unpackable
    with pytest.raises(CorruptBatch, match="at offset 3: its checksum differs"):
        scan(wire, 0, 100)
    scanned = scan(wire, 0, 100, skip_corrupt=True)
    assert scanned.position == 10
    assert rows(scanned, skip_corrupt=True).offset.tolist() == [0, 1, 2, 7, 8]
    assert [(fault.offset, fault.next_offset) for fault in scanned.corrupt] == [(3, 7), (9, 10)]
    assert scan(wire, 0, 3, skip_corrupt=True).corrupt == []
    with pytest.raises(CorruptBatch, match="at offset 9: 1 records in 0 bytes"):
        rows(scanned)
