"""What differs between two answers: a list of places, each once, however often it occurs in a list of items.

Places in a body are paths such as `$.items[*].price`. A name that is missing on one side is a place of its own, so a
renamed field is two of them. Work is bounded: in depth, in parts looked at, in places told.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any

import msgspec

from strandline.report.bodies import Body, Cut, Document, Text
from strandline.report.rules import Rules
from strandline.report.summary import Kind

MAX_PLACES = 100
MAX_PARTS = 200_000
MAX_DEPTH = 60
MAX_VALUE = 300
MAX_LINES = 2_000
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-@")

TYPES: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "number",
    float: "number",
    str: "string",
    list: "list",
    dict: "object",
}
LEAVES = frozenset((type(None), bool, int, float, str))


class Change(Enum):
    """In what way a place differs. Noise of one way hides no other way."""

    VALUE = "value"
    TYPE = "type"
    PRESENCE = "presence"
    """One side has it, and the other does not."""


class Found(msgspec.Struct, kw_only=True, gc=False):
    """A difference in one place of one exchange."""

    kind: Kind
    path: str
    change: Change
    source: str | None
    """What is there, cut where it is long; of several items the first."""
    target: str | None
    source_hash: int
    """Of all that is there, in every item that differs."""
    target_hash: int
    is_ruled: bool = False
    """Whether a rule of the user says to leave it out."""


class Differences:
    """Collects what differs."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.is_cut = False
        """Whether there may be more than is told."""
        self._places: dict[tuple[Kind, str, Change], Found] = {}

    def __iter__(self) -> Iterator[Found]:
        return iter(self._places.values())

    def add(
        self, kind: Kind, path: str, change: Change, source: str | None, target: str | None, *, is_ruled: bool = False
    ) -> None:
        """A difference, each side as text."""
        key = (kind, path, change)
        # What is only on one side differs by that, whatever it is.
        told = (source, target) if change is not Change.PRESENCE else (source and "there", target and "there")
        known = self._places.get(key)
        if known is not None:
            known.source_hash = _hash(told[0], known.source_hash)
            known.target_hash = _hash(told[1], known.target_hash)
        elif len(self._places) >= MAX_PLACES:
            self.is_cut = True
        else:
            self._places[key] = Found(
                kind=kind,
                path=path,
                change=change,
                source=_short(source),
                target=_short(target),
                source_hash=_hash(told[0]),
                target_hash=_hash(told[1]),
                is_ruled=is_ruled,
            )

    def status(self, source: int | None, target: int | None) -> None:
        """Compare the statuses."""
        if source != target:
            self.add(Kind.STATUS, "", Change.VALUE, _status(source), _status(target))

    def headers(self, source: Mapping[str, str], target: Mapping[str, str]) -> None:
        """Compare headers, whose names are in small letters."""
        for name in source.keys() | target.keys():
            one, other = source.get(name), target.get(name)
            if one == other or name in self.rules.default_headers:
                continue
            change = Change.PRESENCE if None in {one, other} else Change.VALUE
            self.add(Kind.HEADER, name, change, one, other, is_ruled=name in self.rules.ruled_headers)

    def bodies(self, source: Body, target: Body) -> None:
        """Compare bodies."""
        match source, target:
            case Document(one), Document(other):
                self._documents(one, other)
            case Text(one), Text(other):
                self._texts(one, other)
            case Cut(), Cut():
                self._cut(source, target)
            case _:
                if source != target:
                    change = Change.VALUE if type(source) is type(target) else Change.TYPE
                    self.add(Kind.BODY, "$", change, body_text(source), body_text(target))

    def _cut(self, source: Cut, target: Cut) -> None:
        if source.sha256 is not None and source.sha256 == target.sha256:
            return
        shared = min(len(source.begin), len(target.begin))
        is_other = source.begin[:shared] != target.begin[:shared]
        if source.is_plain and target.is_plain:
            is_other = is_other or source.length != target.length or None not in {source.sha256, target.sha256}
        if is_other:
            self.add(Kind.BODY, "$", Change.VALUE, str(source), str(target))

    def _texts(self, source: str, target: str) -> None:
        if source == target:
            return
        lines, others = source.splitlines(), target.splitlines()
        if len(lines) != len(others) or len(lines) > MAX_LINES or lines == others:
            self.add(Kind.BODY, "$", Change.VALUE, source, target)
            return
        for number, (line, other) in enumerate(zip(lines, others, strict=True), start=1):
            if line != other:
                self.add(Kind.BODY, f"line {number}", Change.VALUE, line, other)

    def _documents(self, source: Any, target: Any) -> None:
        # A stack of our own: a document may be nested deeper than Python's allows. Its top is compared next.
        parts = 0
        pairs: list[tuple[str, str, Any, Any, int]] = [("$", "", source, target, 0)]
        while pairs:
            path, name, one, other, depth = pairs.pop()
            parts += 1
            if parts > MAX_PARTS:
                self.is_cut = True
                return
            kind, other_kind = TYPES[type(one)], TYPES[type(other)]
            if kind != other_kind:
                self._differ(path, name, Change.TYPE, one, other)
            elif kind not in {"list", "object"}:
                same = self.rules.is_same_number(path, one, other) if kind == "number" else one == other
                if not same:
                    self._differ(path, name, Change.VALUE, one, other)
            elif self.rules.ignores(path, name) or depth >= MAX_DEPTH:
                if _encoded(one) != _encoded(other):
                    self._differ(path, name, Change.VALUE, one, other)
            elif kind == "object":
                pairs += reversed(list(self._members(path, one, other, depth + 1)))
            else:
                pairs += reversed(list(self._items(path, name, one, other, depth + 1)))

    def _members(
        self, path: str, source: dict[str, Any], target: dict[str, Any], depth: int
    ) -> Iterator[tuple[str, str, Any, Any, int]]:
        for name, value in source.items():
            if name not in target:
                self._lack(_step(path, name), name, _encoded(value), None)
            elif type(value) not in LEAVES or type(value) is not type(target[name]) or value != target[name]:
                yield _step(path, name), name, value, target[name], depth
        for name, value in target.items():
            if name not in source:
                self._lack(_step(path, name), name, None, _encoded(value))

    def _items(
        self, path: str, name: str, source: list[Any], target: list[Any], depth: int
    ) -> Iterator[tuple[str, str, Any, Any, int]]:
        inner = f"{path}[*]"
        if path in self.rules.unordered:
            source, target = _unmatched(source, target)
        elif len(source) != len(target):
            source, target = _middle(source, target)
        for one, other in zip(source, target, strict=False):
            yield inner, name, one, other, depth
        for value in source[len(target) :]:
            self._lack(inner, name, _encoded(value), None)
        for value in target[len(source) :]:
            self._lack(inner, name, None, _encoded(value))

    def _differ(self, path: str, name: str, change: Change, source: Any, target: Any) -> None:
        is_ruled = self.rules.ignores(path, name)
        self.add(Kind.BODY, path, change, _encoded(source), _encoded(target), is_ruled=is_ruled)

    def _lack(self, path: str, name: str, source: str | None, target: str | None) -> None:
        self.add(Kind.BODY, path, Change.PRESENCE, source, target, is_ruled=self.rules.ignores(path, name))


def body_text(body: Body) -> str:
    """A whole body as a value to show."""
    match body:
        case Document(value):
            return _encoded(value)
        case Text(text):
            return text
        case _:
            return str(body)


def _middle(source: list[Any], target: list[Any]) -> tuple[list[Any], list[Any]]:
    """Two lists without what they begin and end with in common, so that one item more moves no others."""
    ones, others = [_encoded(item) for item in source], [_encoded(item) for item in target]
    most = min(len(ones), len(others))
    begin = next((at for at in range(most) if ones[at] != others[at]), most)
    most -= begin
    end = next((at for at in range(most) if ones[-1 - at] != others[-1 - at]), most)
    return source[begin : len(source) - end], target[begin : len(target) - end]


def _unmatched(source: list[Any], target: list[Any]) -> tuple[list[Any], list[Any]]:
    """What each of two lists has that the other has not, in an order that does not depend on theirs."""
    ones = sorted(((_encoded(item), item) for item in source), key=lambda pair: pair[0])
    others = sorted(((_encoded(item), item) for item in target), key=lambda pair: pair[0])
    counts = Counter(text for text, _ in ones) & Counter(text for text, _ in others)

    def rest(pairs: list[tuple[str, Any]]) -> list[Any]:
        left, kept = counts.copy(), []
        for text, item in pairs:
            if left[text]:
                left[text] -= 1
            else:
                kept.append(item)
        return kept

    return rest(ones), rest(others)


def _step(path: str, name: str) -> str:
    return f"{path}.{name}" if name and PLAIN.issuperset(name) else f"{path}[{_encoded(name)}]"


def _encoded(value: Any) -> str:
    """A value as JSON, the same text for the same value."""
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except RecursionError:
        return "(nested too deeply)"


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _status(status: int | None) -> str | None:
    return None if status is None else str(status)


def _hash(text: str | None, before: int = 0) -> int:
    """Of a text behind others, as a number that Spark can hold."""
    content = b"\0" if text is None else text.encode("utf-8", "surrogatepass")
    key = before.to_bytes(8, "big", signed=True)
    return int.from_bytes(blake2b(content, digest_size=8, key=key).digest(), "big", signed=True)
