"""The throttle: within its bounds, never more when things are late, all of it again when they are not."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from strandline.core.throttle import Throttle

LATE = 0.1
bounds = st.tuples(st.integers(1, 20), st.integers(0, 200)).map(lambda pair: (pair[0], pair[0] + pair[1]))
lateness = st.floats(0, 10)


def throttled(least: int, most: int) -> Throttle:
    return Throttle(least=least, most=most, late=LATE)


@given(bounds, st.lists(st.tuples(lateness, st.integers(0, 300))))
def test_it_stays_in_its_bounds_and_never_grows_when_things_are_late(
    bounds: tuple[int, int], seen: list[tuple[float, int]]
) -> None:
    throttle = throttled(*bounds)
    for late, used in seen:
        before = throttle.at_once
        now = throttle.observe(late, used)
        assert bounds[0] <= now <= bounds[1]
        assert now <= before or (late <= LATE and used >= before)


@given(bounds, st.lists(st.tuples(lateness, st.integers(0, 300))), lateness, lateness, st.integers(0, 300))
def test_later_things_never_allow_more(
    bounds: tuple[int, int], seen: list[tuple[float, int]], one: float, other: float, used: int
) -> None:
    throttles = throttled(*bounds), throttled(*bounds)
    for late, at_it in seen:
        for throttle in throttles:
            throttle.observe(late, at_it)
    sooner, later = sorted((one, other))
    assert throttles[1].observe(later, used) <= throttles[0].observe(sooner, used)


@given(bounds)
def test_under_load_it_comes_down_by_halves_and_calm_brings_all_back(bounds: tuple[int, int]) -> None:
    least, most = bounds
    throttle = throttled(least, most)
    for _ in range(most.bit_length()):
        throttle.observe(2 * LATE, throttle.at_once)
    assert throttle.at_once == least
    for _ in range(-(-most // least)):
        throttle.observe(0.0, throttle.at_once)
    assert throttle.at_once == most


@given(bounds, st.integers(0, 300))
def test_what_nobody_uses_does_not_grow(bounds: tuple[int, int], used: int) -> None:
    throttle = throttled(*bounds)
    before = throttle.observe(2 * LATE, bounds[1])
    assert throttle.observe(0.0, min(used, before - 1)) == before


@pytest.mark.parametrize(("least", "most"), [(0, 5), (3, 2)])
def test_bounds_that_make_no_sense_are_refused(least: int, most: int) -> None:
    with pytest.raises(ValueError, match="1 <= least <= most"):
        throttled(least, most)
