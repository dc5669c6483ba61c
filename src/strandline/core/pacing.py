"""Source time to wall time: when each item of a recorded log is due.

Every due time is computed from one reference, never from the item before, so that no error accumulates: the millionth
item is as exact as the second.
"""

from dataclasses import dataclass, field
from fractions import Fraction

from strandline.units import Nanos


@dataclass(frozen=True, slots=True)
class Pace:
    """A reference (this source time is that wall time) and a speed (source seconds per wall second)."""

    source: Nanos
    wall: Nanos
    speed: Fraction = Fraction(1)
    # The two numbers of the speed: a fraction is slow to ask.
    _source_part: int = field(init=False, repr=False, compare=False)
    _wall_part: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.speed <= 0:
            raise ValueError(f"speed must be above 0, not {self.speed}")
        object.__setattr__(self, "_source_part", self.speed.numerator)
        object.__setattr__(self, "_wall_part", self.speed.denominator)

    def due(self, source: Nanos) -> Nanos:
        """The wall time at which an item of this source time is due, rounded down to the nanosecond."""
        return Nanos(self.wall + (source - self.source) * self._wall_part // self._source_part)

    def source_at(self, wall: Nanos) -> Nanos:
        """The source time that has been reached at this wall time."""
        return Nanos(self.source + (wall - self.wall) * self._source_part // self._wall_part)


class Pacer:
    """Takes its reference from the first item that it sees: that one is due at once."""

    __slots__ = ("_speed", "pace")

    def __init__(self, speed: Fraction = Fraction(1)) -> None:
        self._speed = speed
        self.pace: Pace | None = None

    def due(self, source: Nanos, now: Nanos) -> Nanos:
        """The wall time at which an item is due."""
        if self.pace is None:
            self.pace = Pace(source, now, self._speed)
        return self.pace.due(source)
