"""Due times: exact from one reference, at any speed, after any number of items."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.pacing import Pace, Pacer
from strandline.units import Nanos

DAY = 86_400_000_000_000
times = st.integers(0, 2**62).map(Nanos)
spans = st.integers(-30 * DAY, 365 * DAY)
speeds = st.fractions(Fraction(1, 100), Fraction(1000), max_denominator=1000)


@given(times, times, st.lists(spans), speeds)
def test_no_due_time_depends_on_the_items_before_it(
    first: Nanos, now: Nanos, steps: list[int], speed: Fraction
) -> None:
    paced = Pacer(speed)
    assert paced.due(first, now) == now
    for step in steps:
        fresh = Pacer(speed)
        fresh.due(first, now)
        source = Nanos(first + step)
        assert paced.due(source, Nanos(now + 99)) == fresh.due(source, Nanos(now + 1))


@given(times, times, spans, speeds)
def test_a_due_time_is_exact_to_the_nanosecond(first: Nanos, now: Nanos, span: int, speed: Fraction) -> None:
    exact = now + Fraction(span) / speed
    assert 0 <= exact - Pace(first, now, speed).due(Nanos(first + span)) < 1


@given(times, times, spans, spans, speeds)
def test_the_order_of_the_source_is_kept(first: Nanos, now: Nanos, one: int, two: int, speed: Fraction) -> None:
    pace = Pace(first, now, speed)
    earlier, later = sorted((one, two))
    assert pace.due(Nanos(first + earlier)) <= pace.due(Nanos(first + later))


@given(times, times, spans, speeds)
def test_an_item_is_due_no_later_than_its_source_time_is_reached(
    first: Nanos, now: Nanos, span: int, speed: Fraction
) -> None:
    pace = Pace(first, now, speed)
    source = Nanos(first + span)
    assert pace.source_at(pace.due(source)) <= source <= pace.source_at(Nanos(pace.due(source) + 1))


@pytest.mark.parametrize("speed", [Fraction(0), Fraction(-1)])
def test_a_speed_that_stands_still_or_goes_back_is_refused(speed: Fraction) -> None:
    with pytest.raises(ValueError, match="speed must be above 0"):
        Pace(Nanos(0), Nanos(0), speed)
