"""What a report says: the values behind its page and its exit code. Times are whole microseconds since 1970 UTC."""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

Curve = Sequence[tuple[float, int]]
"""A distribution of durations: the share of exchanges that took at most so many microseconds, both rising."""


class Verdict(Enum):
    """How the target did in one exchange: the first of these that is true."""

    FAILED = "failed"
    """The target gave no answer."""
    NO_SOURCE = "no source"
    """The capture holds no answer to compare with."""
    STATUS_DIFFERS = "status differs"
    HEADERS_DIFFER = "headers differ"
    BODY_DIFFERS = "body differs"
    SLOWER = "slower"
    """The same answer, but later than the rules allow."""
    SAME = "same"


class Kind(Enum):
    """What a difference is in."""

    STATUS = "status"
    HEADER = "header"
    BODY = "body"


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """A threshold that the user has set, as `mismatch>1%`, and what was found."""

    rule: str
    found: str
    passed: bool


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """How true to the captured timing and order the replay was. None where nothing was sent."""

    late_p50_us: int | None
    late_p99_us: int | None
    late_max_us: int | None
    drift_us_per_s: float | None
    """The slope of lateness over the run."""
    order_violations: int
    connections: int
    """How many source connections were replayed."""
    reuse: float | None
    """Requests for each connection, on average."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the replay, for the timeline. Stretches are of one length and follow each other without a gap."""

    start_us: int
    sent: int
    mismatches: int
    late_p50_us: int | None
    late_p99_us: int | None


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one method and one shape of path, `/orders/{n}` for `/orders/17`."""

    name: str
    """`GET /orders/{n}`."""
    count: int
    verdicts: Mapping[Verdict, int]
    """Those that occur."""
    source: Curve
    target: Curve
    slower: float | None
    """How many times as long the target's median is as the source's; None where either is missing."""
    regressed: bool
    """Whether the test for a regression says that the target has become slower."""
    p_value: float | None
    """Of that test; None where there are too few exchanges for one."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange, for a person to look at. A body that is no text is shown as its length and hash."""

    id: str
    connection: str
    time_us: int
    """When the source's request was made."""
    request: str
    """Head and body as they were sent."""
    source: str | None
    """Head and body of the source's answer."""
    target: str | None
    source_us: int | None
    """How long the source took."""
    target_us: int | None
    error: str | None
    verdict: Verdict


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference in one place of one endpoint's answers, over all exchanges that have it."""

    endpoint: str
    kind: Kind
    path: str
    """A header's name in small letters, or a path into the body such as `$.items[*].price`; empty for the status."""
    count: int
    source: str | None
    """What the example's source has there; None if it is missing there."""
    target: str | None
    example: str
    """The id of an exchange."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """A place that differs by itself, and is left out of the comparison."""

    endpoint: str
    kind: Kind
    path: str
    count: int
    reason: str
    """Such as `differs between two runs against the same target` or `rule`."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    title: str
    origin: str
    """Where the results came from."""
    made_us: int
    first_us: int | None
    """When the first request was sent, and the last; None where nothing was sent."""
    last_us: int | None
    exchanges: int
    verdicts: Mapping[Verdict, int]
    """Those that occur."""
    gates: Sequence[Gate]
    fidelity: Fidelity
    timeline: Sequence[Moment]
    source: Curve
    target: Curve
    endpoints: Sequence[Endpoint]
    """Those with most differences first."""
    differences: Sequence[Difference]
    """The most frequent first, at most a few hundred; `left_out` counts the rest."""
    left_out: int
    noise: Sequence[Noise]
    examples: Mapping[str, Example]
    """By id: one for each difference at least."""
    malformed: int = 0
    """Records that are no results."""
    repeats: int = 0
    """Results of requests that have one already."""
    ignored_headers: Sequence[str] = ()
    """Those that are left out without a word, in small letters."""
