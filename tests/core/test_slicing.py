"""A cut divides the order of rows: all before it come before all behind it, and the shares are as asked."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.slicing import MOST_GUESSES, cut_within_a_time, even_targets, low_watermark, next_guess

logs = st.lists(st.lists(st.integers(0, 5), max_size=12).map(sorted), min_size=1, max_size=4)


@given(logs, st.integers(0, 5), st.integers(0, 60))
def test_a_cut_within_a_time_divides_the_order(times: list[list[int]], time: int, rows: int) -> None:
    firsts = {n: sum(t < time for t in log) for n, log in enumerate(times)}
    behind = {n: sum(t <= time for t in log) for n, log in enumerate(times)}
    cut = cut_within_a_time(time, firsts, behind, rows)
    places = [(t, n, offset) for n, log in enumerate(times) for offset, t in enumerate(log)]
    before = [place for place in places if place[2] < cut.offsets[place[1]]]
    assert sorted(places)[: len(before)] == sorted(before)
    ties = sum(behind.values()) - sum(firsts.values())
    assert len(before) == sum(firsts.values()) + min(rows, ties)


@given(st.integers(0, 10_000), st.integers(1, 50))
def test_shares_are_even(rows: int, slices: int) -> None:
    borders = [0, *even_targets(rows, slices), rows]
    sizes = [high - low for low, high in pairwise(borders)]
    assert len(sizes) == slices
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.integers(-1, 2**62), min_size=1, max_size=200).map(sorted), st.data())
def test_guesses_end_at_the_place_that_is_looked_for(times: list[int], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(times)))
    low, high = (times[0], 0), (times[-1] + 1, len(times))
    for attempt in range(MOST_GUESSES):
        if high[0] - low[0] <= 1:
            break
        time = next_guess(low, high, target, attempt)
        assert low[0] < time < high[0]
        before = sum(t < time for t in times)
        low, high = ((time, before), high) if before < target else (low, (time, before))
    assert high[0] - low[0] <= 1
    assert sum(t < low[0] for t in times) <= target <= sum(t < high[0] for t in times) or target == 0


@given(st.integers(0, 20), st.lists(st.integers(0, 20), min_size=1))
def test_the_low_watermark_never_goes_back_and_stops_for_no_partition_that_brings_nothing_new(
    time: int, lasts: list[int]
) -> None:
    found = low_watermark(time, lasts)
    ahead = [last for last in lasts if last > time]
    assert found == (min(ahead) if ahead else time)
    # Every partition has rows in the epoch, or is ahead of it.
    assert all(last <= found or last > time for last in lasts)
