"""A circuit breaker: after failures in a row nobody waits for a cluster any more, until one who tries finds it well.

CLOSED ── failures in a row ──> OPEN ── after a while ──> HALF_OPEN: one may try
   ^──────────── success ─────────┴────── failure: OPEN again ──────┘
"""

from dataclasses import dataclass
from enum import Enum, auto

from strandline.units import Nanos

NEVER = Nanos(0)


class State(Enum):
    """Whether requests are let through."""

    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


@dataclass(slots=True)
class Breaker:
    """Of one cluster."""

    failures_to_open: int
    open_for: Nanos
    state: State = State.CLOSED
    failures: int = 0
    until: Nanos = NEVER

    def lets(self, now: Nanos) -> bool:
        """Whether a request may be sent now. Of those that ask while it is half open, one may."""
        if self.state is State.CLOSED:
            return True
        if now < self.until:
            return False
        # The one who tries may never come back; the next one may after as long again.
        self.state, self.until = State.HALF_OPEN, Nanos(now + self.open_for)
        return True

    def succeeded(self) -> None:
        """A request was answered."""
        self.state, self.failures = State.CLOSED, 0

    def failed(self, now: Nanos) -> None:
        """A request was not answered."""
        self.failures += 1
        if self.state is State.HALF_OPEN or self.failures >= self.failures_to_open:
            self.state, self.until = State.OPEN, Nanos(now + self.open_for)
