"""Where time comes from. The core takes time as an argument; the edge asks a clock, and a test brings its own."""

import time
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from strandline.units import Nanos

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Two readings: one to measure with, one to tell people and other machines."""

    def monotonic(self) -> Nanos:
        """Never goes back, means nothing outside this process."""
        ...

    def wall(self) -> Nanos:
        """Since 1970 UTC; may be set by somebody at any moment."""
        ...


class SystemClock:
    """The machine's clocks."""

    # No method around it: it is asked several times for each request.
    monotonic = staticmethod(cast("Callable[[], Nanos]", time.monotonic_ns))

    def wall(self) -> Nanos:
        return Nanos(time.time_ns())


class AwakeClock(SystemClock):
    """The machine's clocks, one that also counts the time in which the machine is suspended: for leases."""

    monotonic = staticmethod(cast("Callable[[], Nanos]", partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)))


class ManualClock:
    """Stands still until it is told to move."""

    def __init__(self, wall: int = 0) -> None:
        self._monotonic = Nanos(0)
        self._wall = Nanos(wall)

    def monotonic(self) -> Nanos:
        return self._monotonic

    def wall(self) -> Nanos:
        return self._wall

    def advance(self, by: Nanos) -> None:
        """Let time pass."""
        if by < 0:
            raise ValueError("time does not go back")
        self._monotonic = Nanos(self._monotonic + by)
        self._wall = Nanos(self._wall + by)
