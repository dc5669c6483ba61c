"""Fields of JSON documents by their names, wherever they are: which rules name a field, and a document without such.

A rule is a path from the root, a dot between names. Names are compared without regard to case; `*` is any name, `**`
any number of them, and items of an array count as being where the array is (or as one step, for a star).
"""

from collections.abc import Iterable, Sequence
from typing import Any

MAX_DEPTH = 100
"""Of arrays and objects that are looked into."""

Rule = tuple[tuple[str, ...], str]
"""The steps that are still to go, and the rule as it was written."""


def rules_of(paths: Iterable[str]) -> tuple[Rule, ...]:
    """The rules as they are at the root."""
    return tuple((tuple(path.casefold().split(".")), path) for path in paths)


def advance(rules: Iterable[Rule], name: str | None) -> tuple[list[str], list[Rule]]:
    """Which rules name a field, and which go on below it; no name is an item of an array."""
    named: list[str] = []
    below: list[Rule] = []
    waiting = list(rules)
    folded = None if name is None else name.casefold()
    while waiting:
        (first, *others), rule = waiting.pop()
        rest = tuple(others)
        if first == "**":
            below.append(((first, *rest), rule))
            waiting += [(rest, rule)] if rest else []
        if first in {"*", folded} or (first == "**" and not rest):
            if rest:
                below.append((rest, rule))
            else:
                named.append(rule)
    return named, list(dict.fromkeys(below))


def within(rules: Sequence[Rule], below: Sequence[Rule]) -> list[Rule]:
    """The rules for the items of an array to which the first hold, where the others have taken an item for a step."""
    return list(dict.fromkeys((*rules, *below)))


def without(document: Any, rules: Sequence[Rule], depth: int = 1) -> Any:
    """A document without the fields that are named, as far as it is looked into."""
    if not rules or depth > MAX_DEPTH:
        return document
    if isinstance(document, dict):
        steps = ((name, value, *advance(rules, name)) for name, value in document.items())
        return {name: without(value, below, depth + 1) for name, value, named, below in steps if not named}
    if isinstance(document, list):
        named, below = advance(rules, None)
        return [] if named else [without(item, within(rules, below), depth + 1) for item in document]
    return document
