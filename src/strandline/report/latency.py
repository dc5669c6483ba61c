"""Durations by size, their curve, and a test whether the target has become slower.

The test is that of Mann and Whitney, of how often an answer of the target took longer than one of the source, with the
correction for ties and Holm's for many endpoints. With enough exchanges every difference is significant, so it must be
large too: the median by a factor and by a time.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strandline.report.rules import LatencySection
from strandline.report.summary import Curve

STEPS = 64
"""Buckets for each doubling: a value is told to about 1 %."""
FEWEST = 8
SHARES = (0.0, *(step / 20 for step in range(1, 20)), 0.975, 0.99, 0.995, 0.999, 1.0)

Durations = Mapping[int, int]
"""How many durations there are in each bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """What the test says."""

    slower: float | None
    p_value: float | None
    """With the correction for the number of endpoints."""
    regressed: bool


def bucket(micros: int) -> int:
    """The bucket of a duration; the SQL of the report says the same."""
    return math.floor(math.log2(micros + 1) * STEPS)


def micros_of(bucket_: int) -> int:
    """The duration in the middle of a bucket."""
    return round(2 ** ((bucket_ + 0.5) / STEPS) - 1)


def curve(durations: Durations) -> Curve:
    """The distribution at fixed shares; empty where there is none."""
    if not durations:
        return []
    keys = sorted(durations)
    sums = np.cumsum([durations[key] for key in keys])
    wanted = np.ceil(np.array(SHARES) * sums[-1]).clip(1)
    places = np.searchsorted(sums, wanted)
    return [(share, micros_of(keys[int(place)])) for share, place in zip(SHARES, places, strict=True)]


def quantile(durations: Durations, share: float) -> int | None:
    """The duration that this share of all does not exceed; None where there is none."""
    wanted, seen = max(1, math.ceil(share * sum(durations.values()))), 0
    for key in sorted(durations):
        seen += durations[key]
        if seen >= wanted:
            return micros_of(key)
    return None


def regressions(by_endpoint: Mapping[str, tuple[Durations, Durations]], rules: LatencySection) -> dict[str, Tested]:
    """Each endpoint's source and target, tested together."""
    raw = {name: p_value(source, target) for name, (source, target) in by_endpoint.items()}
    adjusted = _holm({name: p for name, p in raw.items() if p is not None})
    tested = {}
    for name, (source, target) in by_endpoint.items():
        before, after = quantile(source, 0.5), quantile(target, 0.5)
        p = adjusted.get(name)
        is_large = (
            before is not None
            and after is not None
            and after >= before * rules.ratio
            and after - before >= rules.slack_ms * 1000
        )
        tested[name] = Tested(
            slower=None if before is None or after is None else after / max(before, 1),
            p_value=p,
            regressed=p is not None and p < rules.significance and is_large,
        )
    return tested


def p_value(source: Durations, target: Durations) -> float | None:
    """How likely durations of one distribution are to look so much slower on the target; None where there are few."""
    keys = sorted(source.keys() | target.keys())
    ours = np.array([source.get(key, 0) for key in keys], dtype=np.float64)
    theirs = np.array([target.get(key, 0) for key in keys], dtype=np.float64)
    n, m = float(ours.sum()), float(theirs.sum())
    if min(n, m) < FEWEST:
        return None
    below = np.concatenate(([0.0], np.cumsum(ours)[:-1]))
    wins = float((theirs * (below + ours / 2)).sum())
    ties = ours + theirs
    total = n + m
    variance = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return math.erfc((wins - n * m / 2 - 0.5) / math.sqrt(2 * variance)) / 2


def _holm(raw: Mapping[str, float]) -> dict[str, float]:
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(raw, key=lambda key: (raw[key], key))):
        highest = max(highest, min(1.0, raw[name] * (len(raw) - rank)))
        adjusted[name] = highest
    return adjusted
