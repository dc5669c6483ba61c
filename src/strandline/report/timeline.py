"""A replay cut into stretches of one length, few enough to draw."""

from collections.abc import Mapping

from strandline.report.summary import Moment

MAX_MOMENTS = 150
LENGTHS_US = [
    100_000,
    200_000,
    500_000,
    *(seconds * 1_000_000 for seconds in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400)),
]
DAY_US = 86_400_000_000
BULK = (0.05, 0.95)
FAR = 1_000
LEAST_US = 1_000_000


def may_stray(first_us: int, last_us: int) -> bool:
    """Whether times so far apart may hide where most of them are."""
    return last_us - first_us > FAR * LEAST_US


def drawn(first_us: int, last_us: int, *, low_us: int, high_us: int) -> tuple[int, int]:
    """What to draw of a replay between the first two times, most of which lies between the other two.

    A record with an absurd time, as of a clock that was wrong, would make one stretch of all the others.
    """
    bulk = max(high_us - low_us, LEAST_US)
    if last_us - first_us <= FAR * bulk:
        return first_us, last_us
    return max(first_us, low_us - bulk), min(last_us, high_us + bulk)


def length_us(first_us: int, last_us: int) -> int:
    """How long a stretch is, for a replay between these times."""
    span = last_us - first_us
    fitting = (length for length in LENGTHS_US if span < length * MAX_MOMENTS)
    return next(fitting, -(-(span + 1) // (MAX_MOMENTS * DAY_US)) * DAY_US)


def without_gaps(moments: Mapping[int, Moment], *, first_us: int, length: int) -> list[Moment]:
    """The stretches by their numbers from 0 on, with empty ones where nothing was sent."""
    return [
        moments.get(number)
        or Moment(start_us=first_us + number * length, sent=0, mismatches=0, late_p50_us=None, late_p99_us=None)
        for number in range(max(moments, default=-1) + 1)
    ]
