"""Places in a JSON document, such as `a.b[0].c` or `a["key.with.dots"]`, and edits at them.

`put` makes the objects that are missing on the way; it makes no list, and it does not go through what is neither.
`drop` leaves a document as it is where the place does not exist.
"""

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

MAX_STEPS = 50
STEP = re.compile(r'(?:^|(?<=.)\.)(?P<name>[^.\[\]"]+)|\[(?P<index>\d{1,9})\]|\["(?P<quoted>[^"]+)"\]', re.DOTALL)

Path = tuple[str | int, ...]


class NoSuchPlace(ValueError):
    """A place that a document does not have and that cannot be made."""


@lru_cache(maxsize=1000)
def parse(text: str) -> Path:
    """A place as its steps: names and indexes."""
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = STEP.match(text, at)
        if found is None or len(steps) == MAX_STEPS:
            raise ValueError(f"'{text}' is no place in JSON; write it like a.b[0].c, of at most {MAX_STEPS} steps")
        steps.append(int(found["index"]) if found["index"] else found["name"] or found["quoted"])
        at = found.end()
    if not steps:
        raise ValueError("a place in JSON has at least one step")
    return tuple(steps)


def put(document: Any, path: Path, value: Any) -> None:
    """Set the value at a place."""
    for step, following in pairwise(path):
        inside = _at(document, step)
        if inside is None and isinstance(document, dict) and isinstance(following, str):
            inside = document[step] = {}
        document = inside
    if not _takes(document, path[-1]):
        raise NoSuchPlace(f"there is no place for {path[-1]!r}")
    document[path[-1]] = value


def drop(document: Any, path: Path) -> None:
    """Take out what is at a place, if it is there."""
    for step in path[:-1]:
        document = _at(document, step)
    if isinstance(document, dict):
        document.pop(path[-1], None)
    elif _takes(document, path[-1]):
        del document[path[-1]]


def _at(document: Any, step: str | int) -> Any:
    """What is one step further; None also where nothing is, for a null is as good as nothing to go through."""
    if not _takes(document, step):
        return None
    return document.get(step) if isinstance(document, dict) else document[step]


def _takes(document: Any, step: str | int) -> bool:
    """Whether there is, or can be, something one step further."""
    if isinstance(document, list):
        return isinstance(step, int) and step < len(document)
    return isinstance(document, dict) and isinstance(step, str)
