"""The laws of the merge: order, completeness, patience, and a bounded buffer, whatever the reading looks like."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.core.ordering import BEFORE_ALL_TIME, Longs, Ordering, effective_times
from strandline.units import Nanos

CEILING = 1_000
ROW_BYTES = 10
LARGEST_READ = 8
stamps = st.integers(-1, 60) | st.just(5_000)  # 5,000 is the stray date far ahead


def effective(timestamps: list[int]) -> list[int]:
    """The definition, row by row."""
    out: list[int] = []
    for stamp in timestamps:
        reached = out[-1] if out else BEFORE_ALL_TIME
        out.append(reached if stamp > CEILING else max(reached, stamp))
    return out


def longs(numbers: list[int]) -> Longs:
    return np.array(numbers, dtype=np.int64)


@given(st.lists(stamps), st.integers(-1, 50))
def test_effective_time_is_the_running_maximum_of_what_counts(timestamps: list[int], reached: int) -> None:
    expected = [max(reached, time) for time in effective(timestamps)]
    assert effective_times(longs(timestamps), reached, CEILING).tolist() == expected


@settings(max_examples=300)
@given(
    st.lists(st.lists(stamps, max_size=30), min_size=1, max_size=5),
    st.integers(1, 400),
    st.randoms(use_true_random=False),
)
def test_any_reading_in_any_pieces_comes_out_whole_and_in_order(
    logs: list[list[int]], buffer_bytes: int, chance: random.Random
) -> None:
    # Each log ends in an offset without a row, as a control record leaves it: only the position tells that it is read.
    ends = [len(log) + 1 for log in logs]
    times = [effective(log) for log in logs]
    ordering = Ordering({n: (0, end) for n, end in enumerate(ends)}, ceiling=CEILING, buffer_bytes=buffer_bytes)
    position, seen, taken = [0] * len(logs), [0] * len(logs), [0] * len(logs)
    popped: list[tuple[int, int]] = []
    while not ordering.is_drained:
        wanted = ordering.to_read() or ordering.awaited()
        pop = chance.randrange(11)
        if wanted:
            key = chance.choice(wanted)
            at = position[key]
            rows = logs[key][at : at + chance.randrange(LARGEST_READ + 1)]
            seen[key] = max(seen[key], at + len(rows))
            fitting = rows[: ordering.room(key) // ROW_BYTES]
            if rows and not fitting and ordering.must_take(key, rows[0]):
                fitting = rows[:1]
            position[key] += len(fitting) or at == len(logs[key])
            ordering.feed(key, longs(fitting), ROW_BYTES * len(fitting), position[key])
            if len(fitting) < len(rows):
                ordering.foresee(key, rows[len(fitting)], ROW_BYTES)
            assert ordering.held_bytes <= buffer_bytes + ROW_BYTES
        for key in ordering.pop(pop).tolist():
            time = times[key][taken[key]]
            taken[key] += 1
            popped.append((time, key))
            for other, at in enumerate(seen):
                known = position[other] == ends[other] or (at > 0 and (times[other][at - 1], other) >= (time, key))
                assert known, "too early"
    assert taken == [len(log) for log in logs]
    assert popped == sorted(popped)
    assert ordering.held_bytes == 0


def test_a_partition_of_which_nothing_is_known_holds_everything() -> None:
    ordering = Ordering({"a": (0, 9), "b": (0, 9)}, ceiling=CEILING, buffer_bytes=100)
    ordering.feed("a", longs([1, 2, 3]), 3, 3)
    assert ordering.limit() is None
    assert len(ordering.pop(10)) == 0
    ordering.feed("b", longs([2]), 1, 1)
    assert [ordering.keys[number] for number in ordering.pop(10)] == ["a", "a", "b"]


def test_rows_of_equal_time_leave_by_partition_also_when_one_of_them_is_read_later() -> None:
    ordering = Ordering({"a": (0, 9), "b": (0, 9)}, ceiling=CEILING, buffer_bytes=100)
    ordering.feed("a", longs([2]), 1, 1)
    ordering.feed("b", longs([2, 5]), 2, 2)
    assert [ordering.keys[number] for number in ordering.pop(10)] == ["a"]
    ordering.feed("a", longs([2, 3]), 2, 3)
    assert [ordering.keys[number] for number in ordering.pop(10)] == ["a", "b", "a"]


def test_a_full_buffer_reads_only_what_all_others_wait_for() -> None:
    ordering = Ordering({"fast": (0, 99), "slow": (0, 99)}, ceiling=CEILING, buffer_bytes=50)
    ordering.feed("slow", longs([1]), 1, 1)
    ordering.feed("fast", longs([50] * 60), 60, 60)
    ordering.pop(10)
    assert (ordering.to_read(), ordering.awaited()) == ([], ["slow"])
    ordering.feed("slow", longs([70]), 1, 2)
    assert (ordering.to_read(), ordering.awaited()) == ([], [])
    assert len(ordering.pop(100)) == 60
    assert ordering.to_read() == ["fast", "slow"]


def test_a_stray_date_far_ahead_neither_stalls_nor_moves_the_others() -> None:
    ordering = Ordering({"a": (0, 3), "b": (0, 3)}, ceiling=CEILING, buffer_bytes=100)
    ordering.feed("a", longs([10, 5_000, 11]), 3, 3)
    ordering.feed("b", longs([9, 10, 12]), 3, 3)
    assert [ordering.keys[number] for number in ordering.pop(10)] == ["b", "a", "a", "b", "a", "b"]


def test_bytes_are_held_until_the_last_row_that_keeps_them_has_left() -> None:
    ordering = Ordering({"a": (0, 5)}, ceiling=CEILING, buffer_bytes=100)
    ordering.feed("a", longs([1, 2, 3]), 70, 3)
    ordering.feed("a", longs([4, 5]), 20, 5)
    held = []
    while not ordering.is_drained:
        ordering.pop(1)
        held.append(ordering.held_bytes)
    assert held == [90, 90, 20, 20, 0]


@given(st.lists(st.lists(stamps, max_size=20), min_size=1, max_size=4), st.integers(-1, 70), st.integers(1, 9))
def test_all_is_live_exactly_when_every_row_before_the_cutoff_has_left(
    logs: list[list[int]], cutoff: int, most: int
) -> None:
    ordering = Ordering(
        {n: (0, len(log)) for n, log in enumerate(logs)}, ceiling=CEILING, buffer_bytes=100, cutoff=cutoff
    )
    for number, log in enumerate(logs):
        ordering.feed(number, longs(log), len(log), len(log))
    times = sorted(time for log in logs for time in effective(log))
    before = sum(time < cutoff for time in times)
    popped = 0
    while True:
        assert ordering.is_live == (popped >= before)
        rows = len(ordering.pop(most))
        assert popped >= before or popped + rows <= before, "one batch on both sides of the cutoff"
        popped += rows
        if not rows:
            break
    assert popped == len(times)


def test_a_cutoff_ahead_of_all_rows_changes_nothing() -> None:
    ordering = Ordering({"a": (0, 2)}, ceiling=CEILING, buffer_bytes=100, cutoff=500)
    ordering.feed("a", longs([1, 2]), 2, 2)
    assert not ordering.is_live
    ordering.pop(10)
    assert ordering.is_live


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 30)), max_size=30),
    st.integers(0, 40),
)
def test_after_the_end_no_row_waits_longer_than_told_and_what_waits_is_merged(
    arrivals: list[tuple[int, int, int]], idle_after: int
) -> None:
    ordering = Ordering(
        dict.fromkeys(range(3), (0, 0)), ceiling=CEILING, buffer_bytes=100, idle_after=Nanos(idle_after)
    )
    assert ordering.is_live
    ordering.go_live()
    now = 0
    reached = [BEFORE_ALL_TIME] * 3
    waiting: list[list[tuple[int, int]]] = [[], [], []]
    position = [0, 0, 0]
    for key, stamp, later in [*arrivals, (0, 0, 1_000)]:
        now += later
        due = ordering.patience_ends()
        assert due == min((rows[0][1] + idle_after for rows in waiting if rows), default=None)
        last: tuple[int, int] | None = None
        for number in ordering.pop(1_000, Nanos(now)).tolist():
            time, _ = waiting[number].pop(0)
            assert last is None or last <= (time, number), "not merged"
            last = (time, number)
        assert all(since + idle_after > now for rows in waiting for _, since in rows), "waited too long"
        position[key] += 1
        reached[key] = max(reached[key], stamp)
        waiting[key].append((reached[key], now))
        ordering.feed(key, longs([stamp]), 1, position[key], Nanos(now))
