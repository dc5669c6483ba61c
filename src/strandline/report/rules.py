"""What the comparison leaves out and lets pass: the rules of the user, and those that everybody would write."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from strandline.config import Section, load
from strandline.report.endpoints import shape

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
ENDPOINT = re.compile(r"(?P<method>\*|[A-Za-z]{1,20}) (?P<path>/\S*)")
REST = "**"

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
    tolerance: Share | None = None
    """By what share of the larger of them two numbers may differ; none unless told."""
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


class EndpointSection(Section, frozen=True, kw_only=True):
    """Rules for some endpoints, beside those for all."""

    match: str
    """`GET /orders/{n}` as the report names it; `*` stands for any method, any part of a path, or a piece of one, and
    `**` at the end for all that may follow."""
    headers: HeaderSection = HeaderSection()
    body: BodySection = BodySection()

    def __post_init__(self) -> None:
        found = ENDPOINT.fullmatch(self.match)
        if found is None or REST in found["path"].removesuffix(f"/{REST}"):
            raise ValueError(
                f"'{self.match}' is no endpoint; write it like GET /orders/{{n}}, * /orders/** or GET /a/*"
            )
        named = shape(found["method"], found["path"])
        if named != self.match:
            raise ValueError(f"'{self.match}' is no endpoint, which has a kind in the place of a value: '{named}'")

    def takes(self, shape: str) -> bool:
        """Whether these rules are for requests of a shape."""
        method, _, path = self.match.partition(" ")
        parts = [".*" if part == REST else _part(part) for part in path.split("/")]
        return re.fullmatch(f"{_part(method)} {'/'.join(parts)}", shape) is not None


class RulesFile(Section, frozen=True, kw_only=True):
    """A file of rules."""

    headers: HeaderSection = HeaderSection()
    body: BodySection = BodySection()
    endpoints: list[EndpointSection] = msgspec.field(default_factory=list)
    latency: LatencySection = LatencySection()
    noise: NoiseSection = NoiseSection()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    endpoints: tuple[EndpointSection, ...] = ()
    """What is to be added for some endpoints: see `at`."""
    latency: LatencySection = field(default_factory=LatencySection)
    learns: bool = True

    @property
    def has_rules(self) -> bool:
        """Whether the user names something to leave out."""
        return bool(self.ruled_headers or self.ruled_places or self.ruled_names or self.endpoints)

    def at(self, shape: str) -> "Rules":
        """The rules for requests of a shape."""
        return _at(self, shape) if self.endpoints else self

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
    rules = Rules(latency=given.latency, learns=given.noise.learn, endpoints=tuple(given.endpoints))
    return _added(rules, given.headers, given.body)


@lru_cache(maxsize=2_000)
def _at(rules: Rules, shape: str) -> Rules:
    for section in rules.endpoints:
        if section.takes(shape):
            rules = _added(rules, section.headers, section.body)
    return rules


def _added(rules: Rules, headers: HeaderSection, body: BodySection) -> Rules:
    """More rules; where they say otherwise, the later ones hold."""
    compared, ignored = frozenset(_lower(headers.compare)), frozenset(_lower(headers.ignore))
    names = [found["name"] for found in map(ANYWHERE.fullmatch, body.ignore) if found is not None]
    places = [place for place in body.ignore if not ANYWHERE.fullmatch(place)]
    return replace(
        rules,
        default_headers=rules.default_headers - compared - ignored,
        ruled_headers=rules.ruled_headers - compared | ignored,
        ruled_places=rules.ruled_places.union(places),
        ruled_names=rules.ruled_names.union(names),
        unordered=rules.unordered.union(body.unordered),
        tolerance=rules.tolerance if body.tolerance is None else body.tolerance,
        tolerances={**rules.tolerances, **body.tolerances},
    )


def _part(text: str) -> str:
    """A pattern for one part of a path; a part with many values has one name in the report, and its own here."""
    return "[^/]*" if text == "{s}" else "[^/ ]*".join(map(re.escape, text.split("*")))


def _lower(names: Sequence[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _check_place(text: str, *, anywhere: bool) -> None:
    if PLACE.fullmatch(text) or (anywhere and ANYWHERE.fullmatch(text)):
        return
    raise ValueError(f"'{text}' is no place; write it like $.items[*].price" + (" or $..price" if anywhere else ""))
