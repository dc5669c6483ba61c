"""How far the clocks of two machines lie apart, from questions and answers between them."""

from collections import deque
from dataclasses import dataclass

from strandline.units import Nanos

KEPT = 64
"""So many of the last exchanges count, so that a clock that is being set right is followed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One exchange: by our clock sent and returned, by the other's received and answered between them."""

    sent: Nanos
    received: Nanos
    answered: Nanos
    returned: Nanos

    @property
    def ahead(self) -> int:
        """By how much the other clock is ahead of ours, if both ways took equally long."""
        return ((self.received - self.sent) + (self.answered - self.returned)) // 2

    @property
    def doubt(self) -> int:
        """By how much that can be wrong: half of the time on the way, and a nanosecond for the rounding."""
        return max(0, (self.returned - self.sent) - (self.answered - self.received)) // 2 + 1


class Skew:
    """The best of the last exchanges: the one that was the shortest time on the way."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    def add(self, sample: Sample) -> None:
        """One more exchange."""
        self._samples.append(sample)

    @property
    def best(self) -> Sample | None:
        """The most exact exchange; None while there is none."""
        return min(self._samples, key=lambda sample: sample.doubt, default=None)

    @property
    def ahead(self) -> Nanos:
        """By how much the other clock is ahead of ours: 0 where that cannot be told from none at all."""
        best = self.best
        return Nanos(0 if best is None or abs(best.ahead) <= best.doubt else best.ahead)
