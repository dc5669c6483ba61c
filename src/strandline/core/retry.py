"""Whether and when to try again, as data: what kind of failure it was, how long to wait, when to stop.

Nothing here sleeps or draws a random number. The caller passes the draw in, so that every decision can be repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

from strandline.units import Nanos


class Failure(Enum):
    """What kind of failure it was."""

    TRANSIENT = auto()
    """It may work as it is, soon."""
    THROTTLED = auto()
    """It would work, but we are too fast."""
    PERMANENT = auto()
    """It will never work as it is."""


Rules = Sequence[tuple[type[BaseException], Failure]]


def classify(error: BaseException, rules: Rules) -> Failure:
    """The kind of the first rule whose type fits. What no rule names is permanent: never retry the unknown."""
    return next((kind for type_, kind in rules if isinstance(error, type_)), Failure.PERMANENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Waits that grow by a factor up to a ceiling, each shortened at random by at most the share `jitter`."""

    first: Nanos
    ceiling: Nanos
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.ceiling:
            raise ValueError("a back-off needs 0 < first <= ceiling")
        if not 1 <= self.factor < inf:
            raise ValueError("a back-off grows by a factor of at least 1")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter is a share from 0 to 1")

    def delay(self, attempt: int, draw: float) -> Nanos:
        """The wait after the given failed attempt (the first is 1), for a draw from [0, 1)."""
        try:
            grown = min(self.ceiling, self.first * self.factor ** (attempt - 1))
        except OverflowError:
            grown = self.ceiling
        return Nanos(int(grown * (1 - self.jitter * draw)))


@dataclass(frozen=True, slots=True)
class Attempts:
    """Stop after so many attempts."""

    most: int


@dataclass(frozen=True, slots=True)
class Within:
    """Stop when the next attempt would begin later than this after the first."""

    limit: Nanos


@dataclass(frozen=True, slots=True)
class Endless:
    """Never stop, for a reason that is worth writing down."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to answer each kind of failure. A kind without a back-off is not retried."""

    backoff: Mapping[Failure, Backoff]
    until: Attempts | Within | Endless


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again after this wait."""

    delay: Nanos


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again."""

    reason: str


def decide(policy: Policy, failure: Failure, *, attempt: int, elapsed: Nanos, draw: float) -> RetryAfter | GiveUp:
    """What to do after the given failed attempt (the first is 1), so long after the first one began."""
    backoff = policy.backoff.get(failure)
    if backoff is None:
        return GiveUp(f"a {failure.name.lower()} failure is not retried")
    delay = backoff.delay(attempt, draw)
    match policy.until:
        case Attempts(most) if attempt >= most:
            return GiveUp(f"attempt {attempt} of {most} failed")
        case Within(limit) if elapsed + delay > limit:
            return GiveUp(f"{limit / 1e9:g} s have passed since the first of {attempt} attempts")
    return RetryAfter(delay)
