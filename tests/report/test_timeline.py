"""A replay is cut into few stretches of one length without a gap, and its fidelity is that of its requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.report.fidelity import Sums, fidelity
from strandline.report.latency import bucket
from strandline.report.summary import Moment
from strandline.report.timeline import LEAST_US, MAX_MOMENTS, drawn, length_us, may_stray, without_gaps

TIMES = st.integers(0, 10**15)


@given(TIMES, TIMES)
def test_there_are_never_too_many_stretches(one: int, other: int) -> None:
    first, last = sorted((one, other))
    length = length_us(first, last)
    assert length > 0
    assert (last - first) // length < MAX_MOMENTS


@given(st.lists(st.integers(0, 10**8), min_size=40, max_size=60), st.integers(10**12, 10**15))
def test_an_absurd_time_does_not_make_one_stretch_of_all_others(times: list[int], absurd: int) -> None:
    kept = sorted(times)
    low, high = kept[len(kept) // 20], kept[len(kept) * 19 // 20]
    for first, last in ((kept[0], absurd), (-absurd, kept[-1])):
        assert may_stray(first, last)
        begin, end = drawn(first, last, low_us=low, high_us=high)
        assert first <= begin <= low
        assert high <= end <= last
        assert end - begin <= 3 * max(high - low, LEAST_US)
    assert drawn(kept[0], kept[0] + 10**9, low_us=low, high_us=high) == (kept[0], kept[0] + 10**9)


@given(st.sets(st.integers(0, 50), min_size=1))
def test_stretches_follow_each_other_without_a_gap(numbers: set[int]) -> None:
    moments = {
        number: Moment(start_us=100 + number * 10, sent=1, mismatches=0, late_p50_us=1, late_p99_us=1)
        for number in numbers
    }
    made = without_gaps(moments, first_us=100, length=10)
    assert [moment.start_us for moment in made] == [100 + number * 10 for number in range(max(numbers) + 1)]
    assert sum(moment.sent for moment in made) == len(numbers)


@given(st.floats(-1000, 1000), st.integers(2, 100), st.integers(1, 5))
def test_drift_is_the_slope_of_lateness_however_it_is_summed(slope: float, count: int, parts: int) -> None:
    total = Sums()
    for part in range(parts):
        sums = Sums()
        for number in range(part, count, parts):
            x, y = number / 10, 500 + slope * number / 10
            sums.add(Sums(sent=1, x=x, y=y, xy=x * y, xx=x * x, most_late_us=round(y), connections=1))
        total.add(sums)
    assert total.sent == count
    assert total.drift() == pytest.approx(slope, abs=0.01)
    assert total.most_late_us == max(round(500 + slope * n / 10) for n in range(count))


def test_fidelity_of_nothing_is_unknown() -> None:
    kept = fidelity(Sums(), {})
    assert (kept.late_p50_us, kept.late_max_us, kept.drift_us_per_s, kept.reuse) == (None, None, None, None)


def test_lateness_is_told_by_quantiles() -> None:
    late = list(range(1, 1001))
    counts: dict[int, int] = {}
    for value in late:
        counts[bucket(value)] = counts.get(bucket(value), 0) + 1
    kept = fidelity(Sums(sent=len(late), most_late_us=max(late), connections=7), counts)
    assert kept.late_p50_us == pytest.approx(500, rel=0.02)
    assert kept.late_p99_us == pytest.approx(990, rel=0.02)
    assert kept.late_max_us == max(late)
    assert kept.reuse == pytest.approx(len(late) / 7)
