"""What of a message may be recorded: headers, query parameters and JSON fields hashed or removed by name.

The rules: names are compared without regard to case, and more rather than less is taken away. Which JSON fields a path
names, `core/fields.py` says. A hash is keyed, so that equal values can be told to be equal and nothing more. What was
changed in a response is marked there, so that nobody takes it for what the service said.
"""

import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote_plus

import msgspec

from strandline.core.fields import MAX_DEPTH, Rule, advance, rules_of, within
from strandline.wire.http1 import STATUS_LINE
from strandline.wire.redaction_mark import DIGESTS, FRAMING, mark_line

HASH_DIGITS = 32
# With the lines that continue it.
LINE = re.compile(rb"[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|$)")
# Some readers end a line at a lone CR, others take all up to the line feed for one value.
LONE_CR = re.compile(rb"\r(?![\n \t])")
NAME = re.compile(rb"(?:^|\r(?!\n))[ \t\r]*([^:\r\n]*)")
# In a request's target, and wherever else a URL may stand: Referer, Location, Link.
PARAMETER = re.compile(rb"([?&;])([^=&;?#\s\"<>]+)=([^&;#\s\"<>]*)")

Raw = msgspec.Raw


class CannotLookInto(ValueError):
    """A body that may not be recorded, since what is in it cannot be known; the reason in a few words."""


class Action(Enum):
    """What becomes of a value."""

    HASH = "hash"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """What is to be hashed or removed, by name."""

    headers: Mapping[str, Action] = field(default_factory=dict)
    query: Mapping[str, Action] = field(default_factory=dict)
    json: Mapping[str, Action] = field(default_factory=dict)
    key: bytes = b""
    max_body: int = 1 << 20
    """A longer body is left out where JSON fields are named."""
    pass_types: frozenset[str] = frozenset()
    """Types of content that hold no JSON to look into; their bodies are recorded as they are."""
    _headers: dict[bytes, Action] = field(init=False)
    _query: dict[str, Action] = field(init=False)
    _rules: tuple[Rule, ...] = field(init=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "_headers", {name.strip().lower().encode("latin-1"): do for name, do in self.headers.items()})
        set_(self, "_query", {name.casefold(): do for name, do in self.query.items()})
        set_(self, "_rules", rules_of(self.json))

    def hashed(self, value: bytes) -> str:
        """What stands for a value."""
        return hmac.digest(self.key, value, "sha256").hex()[:HASH_DIGITS]

    def looks_into(self, types: Iterable[bytes]) -> bool:
        """Whether a body of such content has to be parsed before it may be recorded."""
        if not self.json:
            return False
        kinds = [kind.partition(b";")[0].strip().lower().decode("latin-1") for kind in types]
        return not kinds or any(kind not in self.pass_types for kind in kinds)

    def head(self, head: bytes) -> bytes:
        """A head, or trailers, as they may be recorded."""
        return b"".join(self._lines(head)[0])

    def marked_head(self, head: bytes) -> bytes:
        """The same, where it is a response's with the names of the headers that are not what they were.

        A request goes to a target some day, and is to be like those that its client sent.
        """
        lines, changed = self._lines(head)
        if STATUS_LINE.match(head):
            lines.insert(-1, mark_line(headers=changed))
        return b"".join(lines)

    def _lines(self, head: bytes) -> tuple[list[bytes], set[str]]:
        lines, changed = [], set()
        for number, line in enumerate(unfolded(head)):
            names = names_in(line)
            named = {self._headers[name]: place for name, place in names if name in self._headers}
            kept = line
            if number and Action.REMOVE in named:
                kept = b""
            elif number and named:
                start, stop = named[Action.HASH]
                value = b" ".join(line[stop:].removeprefix(b":").split())
                kept = b"%b: %b\r\n" % (line[start:stop].strip(), self.hashed(value).encode())
            elif self._query:
                kept = PARAMETER.sub(self._parameter, line)
            if number and kept != line:
                changed |= {name.decode("latin-1") for name, _ in names if name}
            lines.append(kept)
        return lines, changed

    def trailers(self, trailers: bytes) -> bytes:
        """The fields after a chunked body, as they may be recorded."""
        return self.head(b"\n" + trailers)[1:]

    def body(self, body: bytes) -> tuple[bytes, set[str]]:
        """A body as it may be recorded, JSON or JSON lines, and which rules name fields in it.

        Where there are none, it is what it was, byte for byte.
        """
        try:
            found: set[str] = set()
            try:
                return self._document(body, found), found
            except (msgspec.DecodeError, UnicodeError):
                found.clear()
                lines = body.split(b"\n")
                return b"\n".join(self._document(line, found) if line.strip() else line for line in lines), found
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CannotLookInto("not JSON") from error
        except RecursionError as error:
            raise CannotLookInto("too deep") from error

    def _document(self, text: bytes, found: set[str]) -> bytes:
        here: set[str] = set()
        edited = self._edited(text, self._rules, here)
        found |= here
        # Of a name that is repeated only the last value was looked at, and only that is in what was made anew.
        return edited if here or repeats_a_name(text) else text

    def _parameter(self, found: re.Match[bytes]) -> bytes:
        before, name, value = found.groups()
        action = self._query.get(unquote_plus(name.decode("latin-1")).casefold())
        if action is None:
            return found[0]
        if action is Action.REMOVE:
            return before
        text = unquote_plus(value.decode("latin-1"), "latin-1").encode("latin-1", "replace")
        return b"%b%b=%b" % (before, name, self.hashed(text).encode())

    def _edited(self, text: bytes | Raw, rules: Sequence[Rule], found: set[str], depth: int = 1) -> bytes:
        if depth > MAX_DEPTH:
            raise CannotLookInto("too deep")
        kind = bytes(text).lstrip()[:1]
        if kind == b"{":
            return self._edited_object(text, rules, found, depth)
        if kind == b"[":
            return self._edited_array(text, rules, found, depth)
        msgspec.json.decode(text)
        return bytes(text)

    def _edited_object(self, text: bytes | Raw, rules: Sequence[Rule], found: set[str], depth: int) -> bytes:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
        kept: dict[str, Raw | str] = {}
        for name, value in fields.items():
            named, below = advance(rules, name)
            found.update(named)
            if not named:
                kept[name] = Raw(self._edited(value, below, found, depth + 1)) if below else value
            elif not self._removes(named):
                kept[name] = self._hashed_value(value)
        return msgspec.json.encode(kept)

    def _edited_array(self, text: bytes | Raw, rules: Sequence[Rule], found: set[str], depth: int) -> bytes:
        # A name of no field: only stars take an item for a step.
        named, below = advance(rules, None)
        inner = within(rules, below)
        kept: list[Raw | str] = []
        for item in msgspec.json.decode(text, type=list[Raw]):
            found.update(named)
            if not named:
                kept.append(Raw(self._edited(item, inner, found, depth + 1)))
            elif not self._removes(named):
                kept.append(self._hashed_value(item))
        return msgspec.json.encode(kept)

    def _removes(self, named: Iterable[str]) -> bool:
        return any(self.json[rule] is Action.REMOVE for rule in named)

    def _hashed_value(self, value: Raw) -> str:
        """The same for a string here and in a header."""
        decoded = msgspec.json.decode(value)
        return self.hashed(decoded.encode() if isinstance(decoded, str) else bytes(value))


def unfolded(head: bytes) -> list[bytes]:
    """The lines of a head, each but the first with those that continue it."""
    first, end, others = head.partition(b"\n")
    return [first + end, *filter(None, LINE.findall(others))]


def names_in(line: bytes) -> list[tuple[bytes, tuple[int, int]]]:
    """What may be taken for the name of a header in a line, and where: at its beginning, and after each lone CR."""
    return [(found[1].strip().lower(), found.span(1)) for found in NAME.finditer(line)]


def values_of(head: bytes, name: bytes) -> list[bytes]:
    """The values of a header, in order."""
    fields = (part.partition(b":") for line in unfolded(head)[1:] for part in LONE_CR.split(line))
    return [b" ".join(value.split()) for field, _, value in fields if field.strip().lower() == name]


def with_length(head: bytes, length: int, mark: bytes = b"", *, is_changed: bool = True) -> bytes:
    """A head for a body of that length; with a mark, and without digests, where the body is not what it was."""
    stale = FRAMING | DIGESTS if is_changed else FRAMING
    lines = [line for line in unfolded(head) if stale.isdisjoint(name for name, _ in names_in(line))]
    end = lines.pop()
    return b"".join([*lines, b"Content-Length: %d\r\n" % length, mark, end])


def repeats_a_name(text: bytes) -> bool:
    """Whether an object has a field twice; also where that cannot be told."""
    try:
        json.loads(text.decode(), object_pairs_hook=_named_once, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return True
    return False


def _named_once(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name is repeated")
