"""Noise: places that differ by themselves, told from those that differ because source and target do.

A value that is drawn anew for each answer, such as a time or an identity, is drawn by source and target alike. So the
answers to one request are *exchangeable*: none of them is more often the odd one out than another. That is what is
asked of a place before it counts as noise, and in doubt it does not. In particular:

- A status is never noise: a target that fails now and then has a fault.
- Of **two runs against one target** there are three answers to each request. Where all three differ, the place is
  drawn anew. Where one is odd, it must be the source's in about a third: in all of them, the target has changed; in
  none, the target alone is fickle.
- Of **requests that were asked twice** there are two captured answers and two of the target's. Where the captured ones
  differ, and the target's differ from both, the place is drawn anew. Where the captured ones are the same, or the
  target's agrees with one of them, source and target can agree there, and something else is amiss.
- A place whose captured values come again and again, each always with the same value of the target's, is not drawn:
  the target translates it.
- A header is one thing at all endpoints: where one endpoint cannot tell, the others do.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from strandline.report.differences import Change
from strandline.report.summary import Kind

CHANCE = 0.05
FEWEST_ODD = 30
"""With fewer, a fickle target looks like a place of few values."""
EXACT_UP_TO = 2_000
BY_TWO_RUNS = "differs between two runs against the same target"
BY_SOURCE = "differs between two answers of the source to the same request"
BY_OTHERS = "differs by itself at other endpoints"
BY_RULE = "rule"


class Place(NamedTuple):
    """Where something differs, and in what way."""

    endpoint: str
    kind: Kind
    path: str
    change: Change


class Evidence(msgspec.Struct, kw_only=True, frozen=True):
    """What has been seen of a place, in exchanges where source and target differ there."""

    differ: int = 0
    """In how many exchanges."""
    values: int = 0
    """How many different captured values."""
    pairs: int = 0
    """How many different pairs of a captured value and the target's."""
    scattered: int = 0
    """Two runs: all three answers differ."""
    odd_source: int = 0
    """Two runs: both of the target's are the same."""
    odd_target: int = 0
    """Two runs: one of the target's is the source's."""
    moved: float = 0
    """Asked twice, in so many pairs: the captured answers differ, and the target's differ from both."""
    stood: float = 0
    """Asked twice: the captured answers are the same, and the target's differ from them."""
    agreed: float = 0
    """Asked twice: source and target differ in one exchange and agree in the other."""


def learn(seen: Mapping[Place, Evidence]) -> dict[Place, str]:
    """The places that are noise, each with the reason."""
    noise: dict[Place, str] = {}
    undecided: list[Place] = []
    for place, evidence in seen.items():
        reason = _reason(place, evidence)
        if reason is not None:
            noise[place] = reason
        elif place.kind is Kind.HEADER and not _has_evidence(evidence):
            undecided.append(place)
    headers = {(place.path, place.change) for place in noise if place.kind is Kind.HEADER}
    headers -= {
        (place.path, place.change) for place, evidence in seen.items() if place not in noise and _has_evidence(evidence)
    }
    return noise | {place: BY_OTHERS for place in undecided if (place.path, place.change) in headers}


def _reason(place: Place, seen: Evidence) -> str | None:
    if place.kind is Kind.STATUS:
        return None
    if seen.scattered + seen.odd_source + seen.odd_target:
        return BY_TWO_RUNS if _differs_between_runs(seen) else None
    is_drawn = seen.moved > 0 and seen.moved >= 2 * seen.stood and seen.moved >= seen.agreed
    return BY_SOURCE if is_drawn and not _is_translated(seen) else None


def _has_evidence(seen: Evidence) -> bool:
    return bool(seen.scattered + seen.odd_source + seen.odd_target + seen.moved + seen.stood + seen.agreed)


def _is_translated(seen: Evidence) -> bool:
    return seen.differ >= 2 * seen.values and seen.pairs == seen.values


def _differs_between_runs(seen: Evidence) -> bool:
    odd = seen.odd_source + seen.odd_target
    if seen.scattered and seen.scattered >= odd:
        return True
    if odd < FEWEST_ODD or not seen.odd_target:
        return False
    at_most, at_least = _tails(odd, seen.odd_source)
    return at_most >= CHANCE and at_least >= CHANCE


def _tails(count: int, hits: int, share: float = 1 / 3) -> tuple[float, float]:
    """How likely it is that at most, and that at least, so many of all hit, where each does with this share."""
    if count > EXACT_UP_TO:
        spread = math.sqrt(count * share * (1 - share) * 2)
        return (
            math.erfc((count * share - hits - 0.5) / spread) / 2,
            math.erfc((hits - 0.5 - count * share) / spread) / 2,
        )
    chances = [
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(share)
            + (count - k) * math.log1p(-share)
        )
        for k in range(count + 1)
    ]
    return math.fsum(chances[: hits + 1]), math.fsum(chances[hits:])
