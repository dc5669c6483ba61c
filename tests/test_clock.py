"""Clocks: the machine's, and one that stands still."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import AwakeClock, Clock, ManualClock, SystemClock
from strandline.units import Nanos, nanos


@pytest.mark.parametrize("clock", [SystemClock(), AwakeClock()])
def test_the_machine_never_goes_back(clock: Clock) -> None:
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)
    assert clock.wall() > 1_600_000_000_000_000_000


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(wall=100)
    assert (clock.monotonic(), clock.wall()) == (0, 100) == (clock.monotonic(), clock.wall())
    clock.advance(Nanos(5))
    assert (clock.monotonic(), clock.wall()) == (5, 105)
    with pytest.raises(ValueError, match="time does not go back"):
        clock.advance(Nanos(-1))


@given(st.timedeltas())
def test_a_duration_is_exact_in_nanoseconds(duration: timedelta) -> None:
    assert timedelta(microseconds=nanos(duration) // 1000) == duration
    assert nanos(duration) % 1000 == 0
