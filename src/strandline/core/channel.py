"""Words that are made from a record, such as its channel: `{key}`, `{header:type}`, `{json:a.b}`, or several with text.

A record that lacks one of the parts, or has it as something else than text or a number, has no such word.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.core import json_path
from strandline.json_decode import MalformedJson, decode

PART = re.compile(r"\{(?P<kind>key|topic|header:(?P<header>[^{}]+)|json:(?P<path>[^{}]+))\}")


@dataclass(frozen=True, slots=True)
class Row:
    """What a record has to make words from."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Part = Callable[[Row], str | None]


@dataclass(frozen=True, slots=True)
class Template:
    """A word to be made from each record."""

    text: str
    parts: tuple[Part, ...]
    needs_headers: bool

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Read a template; a ValueError says what is wrong with it."""
        parts: list[Part] = []
        at = 0
        for found in PART.finditer(text):
            parts.append(_literal(text[at : found.start()]))
            parts.append(_part(found))
            at = found.end()
        parts.append(_literal(text[at:]))
        return cls(text, tuple(parts), "{header:" in text)

    def of(self, row: Row) -> str | None:
        """The word of a record, or None where it has none."""
        words = [part(row) for part in self.parts]
        return None if None in words else "".join(word for word in words if word is not None)


def _literal(text: str) -> Part:
    if "{" in text or "}" in text:
        raise ValueError(f"'{text}': between braces stands key, topic, header:NAME or json:PATH")
    return lambda _: text


def _part(found: re.Match[str]) -> Part:
    if (name := found["header"]) is not None:
        return lambda row: next((_word(value) for key, value in row.headers if key == name), None)
    if found["path"] is not None:
        path = json_path.parse(found["path"])
        return lambda row: _at(row.value, path)
    return (lambda row: row.topic) if found["kind"] == "topic" else (lambda row: _word(row.key))


def _word(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _at(value: bytes | None, path: json_path.Path) -> str | None:
    try:
        found: Any = decode(value or b"")
        for step in path:
            found = found[step]
    except (MalformedJson, LookupError, TypeError):
        return None
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else None
