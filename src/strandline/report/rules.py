"""What the comparison leaves out and lets pass: the rules of the user, and those that everybody would write."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from strandline.config import Section, load

# They belong to a connection, to the moment, or to the program that answers, not to the answer.
IGNORED_HEADERS = frozenset(
    (
        "age",
        "alt-svc",
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-connection",
        "server",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-strandline-request",
    )
)
PLACE = re.compile(r'\$(?:\.[^.\[\]"*]+|\[\*\]|\["[^"]+"\])*')
ANYWHERE = re.compile(r'\$\.\.(?P<name>[^.\[\]"*]+)')

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class HeaderSection(Section, frozen=True, kw_only=True):
    """Rules for headers."""

    ignore: list[str] = msgspec.field(default_factory=list)
    """Left out, beside those that always are."""
    compare: list[str] = msgspec.field(default_factory=list)
    """Compared, though they are left out by default."""


class BodySection(Section, frozen=True, kw_only=True):
    """Rules for bodies."""

    ignore: list[str] = msgspec.field(default_factory=list)
    """Places in JSON and forms, with what is in them: `$.took`, `$.items[*].id`, or `$..id` for a name anywhere."""
    unordered: list[str] = msgspec.field(default_factory=list)
    """Lists whose order means nothing."""
    tolerance: Share = 0.0
    """By what share of the larger of them two numbers may differ."""
    tolerances: dict[str, Share] = msgspec.field(default_factory=dict)
    """The same for numbers in one place."""

    def __post_init__(self) -> None:
        for text in self.ignore:
            _check_place(text, anywhere=True)
        for text in (*self.unordered, *self.tolerances):
            _check_place(text, anywhere=False)


class LatencySection(Section, frozen=True, kw_only=True):
    """When a target counts as slower."""

    ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    """Its median is at least so many times the source's ..."""
    slack_ms: Annotated[float, msgspec.Meta(ge=0)] = 20.0
    """... and at least so much above it."""
    significance: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.001
    """How likely chance may raise a false alarm, over all endpoints together."""


class NoiseSection(Section, frozen=True, kw_only=True):
    """Noise cancellation."""

    learn: bool = True


class RulesFile(Section, frozen=True, kw_only=True):
    """A file of rules."""

    headers: HeaderSection = HeaderSection()
    body: BodySection = BodySection()
    latency: LatencySection = LatencySection()
    noise: NoiseSection = NoiseSection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules as the comparison asks for them."""

    default_headers: frozenset[str] = IGNORED_HEADERS
    """Left out without a word."""
    ruled_headers: frozenset[str] = frozenset()
    """Left out, and counted."""
    ruled_places: frozenset[str] = frozenset()
    ruled_names: frozenset[str] = frozenset()
    unordered: frozenset[str] = frozenset()
    tolerance: float = 0.0
    tolerances: Mapping[str, float] = field(default_factory=dict)
    latency: LatencySection = field(default_factory=LatencySection)
    learns: bool = True

    @property
    def has_rules(self) -> bool:
        """Whether the user names something to leave out."""
        return bool(self.ruled_headers or self.ruled_places or self.ruled_names)

    def ignores(self, path: str, name: str) -> bool:
        """Whether a place is left out, by its path or by the last name in it."""
        return path in self.ruled_places or name in self.ruled_names

    def is_same_number(self, path: str, one: float, other: float) -> bool:
        """Whether two numbers are the same but for the tolerance of their place."""
        if one == other:
            return True
        share = self.tolerances.get(path, self.tolerance)
        return share > 0 and abs(one - other) <= share * max(abs(one), abs(other))


def load_rules(file: Path | None) -> Rules:
    """The rules of a file; ConfigError tells what is wrong with it and where."""
    return Rules() if file is None else rules_of(load(file, RulesFile))


def rules_of(given: RulesFile) -> Rules:
    """The rules as the comparison asks for them."""
    names = [found["name"] for found in map(ANYWHERE.fullmatch, given.body.ignore) if found is not None]
    ignored = frozenset(_lower(given.headers.ignore))
    return Rules(
        default_headers=IGNORED_HEADERS - frozenset(_lower(given.headers.compare)) - ignored,
        ruled_headers=ignored,
        ruled_places=frozenset(place for place in given.body.ignore if not ANYWHERE.fullmatch(place)),
        ruled_names=frozenset(names),
        unordered=frozenset(given.body.unordered),
        tolerance=given.body.tolerance,
        tolerances=given.body.tolerances,
        latency=given.latency,
        learns=given.noise.learn,
    )


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _check_place(text: str, *, anywhere: bool) -> None:
    if PLACE.fullmatch(text) or (anywhere and ANYWHERE.fullmatch(text)):
        return
    raise ValueError(f"'{text}' is no place; write it like $.items[*].price" + (" or $..price" if anywhere else ""))
