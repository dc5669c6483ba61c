"""When what happened at the source is to happen again, on a clock that can be stopped."""

from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction

from strandline.clock import Clock
from strandline.core.pacing import Pace
from strandline.errors import OptionError
from strandline.units import Nanos

AS_FAST_AS_POSSIBLE = Fraction(10**9)


def date_of(source: Nanos | None) -> datetime | None:
    """A time of the source, to be shown; None beyond all dates, where the clock is soon at full speed."""
    try:
        return None if source is None else datetime.fromtimestamp(source // 1000 / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def parse_speed(text: str) -> Fraction:
    """Read a speed: a number, a fraction, or `max`."""
    if text == "max":
        return AS_FAST_AS_POSSIBLE
    try:
        speed = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"'{text}' is no speed; write a number such as 2, 0.5 or 3/2, or max") from None
    if not 0 < speed <= AS_FAST_AS_POSSIBLE:
        raise OptionError(f"a speed of {text} is not possible; write a number above 0, or max")
    return speed


class Timeline:
    """Source time to the monotonic clock. Without a reference, the first time asked for is now."""

    def __init__(self, clock: Clock, speed: Fraction = Fraction(1), reference: Pace | None = None) -> None:
        self._clock = clock
        self._speed = speed
        self._pace = reference
        self._stopped: Nanos | None = None
        self._stood = Nanos(0)

    @property
    def is_free(self) -> bool:
        """Whether all is due as soon as it is known."""
        return self._speed == AS_FAST_AS_POSSIBLE

    def begin(self, source: Nanos) -> None:
        """This source time is now, unless there is a reference already."""
        if self._pace is None:
            self._pace = Pace(source, self._clock.monotonic(), self._speed)

    def refer(self, reference: Pace) -> None:
        """Take a reference that came from elsewhere, unless there is one already."""
        self._pace = self._pace or reference

    def due(self, source: Nanos) -> Nanos:
        """When what happened at this source time is to happen again, if the clock is not stopped until then."""
        if self._pace is None:
            self._pace = Pace(source, self._clock.monotonic(), self._speed)
        return self._pace.due(source)

    @property
    def reference(self) -> Nanos | None:
        """The source time that all others are counted from; None while there is none."""
        return None if self._pace is None else self._pace.source

    def reached(self) -> Nanos | None:
        """The source time that it is now; None while there is no reference."""
        if self._pace is None:
            return None
        return self._pace.source_at(self._clock.monotonic() if self._stopped is None else self._stopped)

    def shown(self) -> Nanos | None:
        """The same to be shown; None also where all is due at once: then it says nothing of what has been sent."""
        return None if self.is_free else self.reached()

    def stop(self) -> None:
        """Stand still."""
        if self._stopped is None:
            self._stopped = self._clock.monotonic()

    def go_on(self) -> Nanos:
        """Run again from where it stood; for how long it did."""
        if self._stopped is None:
            return Nanos(0)
        stood = Nanos(self._clock.monotonic() - self._stopped)
        self._stopped = None
        self._put_off(stood)
        return stood

    @property
    def stood(self) -> Nanos:
        """For how long it has stood still in all, until now."""
        now = Nanos(0) if self._stopped is None else Nanos(self._clock.monotonic() - self._stopped)
        return Nanos(self._stood + now)

    def follow(self, stood: Nanos) -> None:
        """Another clock that keeps the same time has stood still for so long in all: so has this one, if it runs."""
        if self._stopped is None and stood > self._stood:
            self._put_off(Nanos(stood - self._stood))

    def _put_off(self, by: Nanos) -> None:
        self._stood = Nanos(self._stood + by)
        if self._pace is not None:
            self._pace = replace(self._pace, wall=Nanos(self._pace.wall + by))
