"""Endpoints: requests of one method and one shape of path, such as `GET /orders/{n}`, and never too many of them.

What looks like a number, a date, a uuid or a hash is named by its kind. What does not, such as names of users, is
found by its number: a place in a path that holds more than `MAX_WORDS` different words is one of `{s}`.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

MAX_WORDS = 30
MAX_ENDPOINTS = 500
MAX_SEGMENTS = 12
MAX_SEGMENT = 80
OTHERS = "(other endpoints)"
UNREADABLE = "(no request line)"

KINDS = (
    (re.compile(r"-?\d{1,40}(?:\.\d{1,20})?"), "{n}"),
    (re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ]\d\d:?\d\d.{0,20})?)?"), "{date}"),
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "{uuid}"),
    (re.compile(r"(?=[^a-fA-F]*[a-fA-F])(?=\D*\d)[0-9a-fA-F]{8,128}"), "{hash}"),
    (re.compile(r"(?=\D*\d)(?=[^A-Z]*[A-Z])[A-Za-z0-9_~-]{16,128}"), "{token}"),
)
# Of one word in front and an identity behind it, as in `order-17` or `user_0f3a9c1b7d22`.
PREFIXED = re.compile(r"([A-Za-z]{1,20}[-_:])(.+)")


def shape(method: str | None, target: str | None) -> str:
    """The method and the shape of the path, by the looks of its parts alone."""
    if method is None or target is None:
        return UNREADABLE
    path = target.partition("?")[0].partition("#")[0]
    if "://" in path[:9]:
        path = "/" + path.partition("://")[2].partition("/")[2]
    segments = path.split("/")
    shown = [_shape(segment) for segment in segments[:MAX_SEGMENTS]]
    return f"{method[:20]} {'/'.join(shown)}{'/…' if len(segments) > MAX_SEGMENTS else ''}"


@lru_cache(maxsize=10_000)
def _shape(segment: str) -> str:
    if not segment or segment.isalpha():
        return segment[:MAX_SEGMENT]
    for pattern, kind in KINDS:
        if pattern.fullmatch(segment):
            return kind
    prefixed = PREFIXED.fullmatch(segment)
    if prefixed is not None:
        inner = _shape(prefixed[2])
        if inner.startswith("{"):
            return prefixed[1] + inner
    return segment[:MAX_SEGMENT]


class Endpoints:
    """The name of the endpoint for each shape, learned from all of them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        words: dict[str, set[str]] = {}
        self._full: set[str] = set()
        # One level after the other, since what is merged on one level is one place on the next.
        split = [name.split("/") for name in counts]
        for level in range(1, MAX_SEGMENTS + 1):
            words.clear()
            for parts in split:
                if len(parts) > level and not parts[level].startswith("{"):
                    words.setdefault("/".join(parts[:level]), set()).add(parts[level])
            full = {place for place, found in words.items() if len(found) > MAX_WORDS}
            self._full |= full
            for parts in split:
                if len(parts) > level and "/".join(parts[:level]) in full:
                    parts[level] = _merged(parts[level])
        totals: dict[str, int] = {}
        for parts, count in zip(split, counts.values(), strict=True):
            name = "/".join(parts)
            totals[name] = totals.get(name, 0) + count
        self._known = set(sorted(totals, key=lambda name: (-totals[name], name))[:MAX_ENDPOINTS])

    def name(self, found: str) -> str:
        """The endpoint of a shape."""
        if found in self._known:
            return found
        parts = found.split("/")
        for level in range(1, len(parts)):
            if "/".join(parts[:level]) in self._full:
                parts[level] = _merged(parts[level])
        name = "/".join(parts)
        return name if name in self._known else OTHERS

    def names(self, shapes: Iterable[str]) -> dict[str, str]:
        """The endpoints of many shapes."""
        return {found: self.name(found) for found in shapes}


def _merged(word: str) -> str:
    return word if word.startswith("{") or not word else "{s}"
