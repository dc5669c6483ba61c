"""What of a message may be recorded: headers, query parameters and JSON fields hashed or removed by name.

The rules: names are compared without regard to case, and more rather than less is taken away. A JSON path goes from the
root, a dot between names; `*` is any name, `**` any number of them, and items of an array count as being where the
array is (or as one step, for a star). A hash is keyed, so that equal values can be told to be equal and nothing more.
"""

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import unquote_plus

import msgspec

HASH_DIGITS = 32
MAX_DEPTH = 100
"""Of arrays and objects that are looked into; each level reads again all that is in it."""
# With the lines that continue it.
LINE = re.compile(rb"[^\n]*+(?:\n[ \t][^\n]*+)*+(?:\n|$)")
# Some readers end a line at a lone CR, others take all up to the line feed for one value.
LONE_CR = re.compile(rb"\r(?![\n \t])")
NAME = re.compile(rb"(?:^|\r(?!\n))[ \t\r]*([^:\r\n]*)")
# In a request's target, and wherever else a URL may stand: Referer, Location, Link.
PARAMETER = re.compile(rb"([?&;])([^=&;?#\s\"<>]+)=([^&;#\s\"<>]*)")
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"trailer"})
# They would no longer be true, and a plain digest of a short secret gives it away.
DIGESTS = frozenset({b"content-md5", b"digest", b"content-digest", b"repr-digest"})
MARK = b"X-Strandline-Redacted"

Path = tuple[str, ...]
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
    _paths: tuple[tuple[Path, Action], ...] = field(init=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "_headers", {name.strip().lower().encode("latin-1"): do for name, do in self.headers.items()})
        set_(self, "_query", {name.casefold(): do for name, do in self.query.items()})
        set_(self, "_paths", tuple((tuple(path.casefold().split(".")), do) for path, do in self.json.items()))

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
        lines = []
        for number, line in enumerate(unfolded(head)):
            named = {self._headers[name]: place for name, place in names_in(line) if name in self._headers}
            if number and Action.REMOVE in named:
                continue
            if number and named:
                start, stop = named[Action.HASH]
                value = b" ".join(line[stop:].removeprefix(b":").split())
                line = b"%b: %b\r\n" % (line[start:stop].strip(), self.hashed(value).encode())  # noqa: PLW2901
            elif self._query:
                line = PARAMETER.sub(self._parameter, line)  # noqa: PLW2901
            lines.append(line)
        return b"".join(lines)

    def trailers(self, trailers: bytes) -> bytes:
        """The fields after a chunked body, as they may be recorded."""
        return self.head(b"\n" + trailers)[1:]

    def body(self, body: bytes) -> bytes:
        """A body as it may be recorded: JSON, or JSON lines."""
        try:
            try:
                return self._edited(body, self._paths)
            except (msgspec.DecodeError, UnicodeError):
                lines = body.split(b"\n")
                return b"\n".join(self._edited(line, self._paths) if line.strip() else line for line in lines)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise CannotLookInto("not JSON") from error
        except RecursionError as error:
            raise CannotLookInto("too deep") from error

    def _parameter(self, found: re.Match[bytes]) -> bytes:
        before, name, value = found.groups()
        action = self._query.get(unquote_plus(name.decode("latin-1")).casefold())
        if action is None:
            return found[0]
        if action is Action.REMOVE:
            return before
        text = unquote_plus(value.decode("latin-1"), "latin-1").encode("latin-1", "replace")
        return b"%b%b=%b" % (before, name, self.hashed(text).encode())

    def _edited(self, text: bytes | Raw, paths: Sequence[tuple[Path, Action]], depth: int = 1) -> bytes:
        if depth > MAX_DEPTH:
            raise CannotLookInto("too deep")
        kind = bytes(text).lstrip()[:1]
        if kind == b"{":
            return self._edited_object(text, paths, depth)
        if kind == b"[":
            return self._edited_array(text, paths, depth)
        msgspec.json.decode(text)
        return bytes(text)

    def _edited_object(self, text: bytes | Raw, paths: Sequence[tuple[Path, Action]], depth: int) -> bytes:
        fields = msgspec.json.decode(text, type=dict[str, Raw])
        kept: dict[str, Raw | str] = {}
        for name, value in fields.items():
            action, below = advance(paths, name.casefold())
            if action is Action.HASH:
                kept[name] = self._hashed_value(value)
            elif action is None:
                kept[name] = Raw(self._edited(value, below, depth + 1)) if below else value
        return msgspec.json.encode(kept)

    def _edited_array(self, text: bytes | Raw, paths: Sequence[tuple[Path, Action]], depth: int) -> bytes:
        # A name of no field: only stars take an item for a step.
        action, below = advance(paths, None)
        within = list(dict.fromkeys((*paths, *below)))
        kept: list[Raw | str] = []
        for item in msgspec.json.decode(text, type=list[Raw]):
            if action is Action.HASH:
                kept.append(self._hashed_value(item))
            elif action is None:
                kept.append(Raw(self._edited(item, within, depth + 1)))
        return msgspec.json.encode(kept)

    def _hashed_value(self, value: Raw) -> str:
        """The same for a string here and in a header."""
        decoded = msgspec.json.decode(value)
        return self.hashed(decoded.encode() if isinstance(decoded, str) else bytes(value))


def advance(paths: Iterable[tuple[Path, Action]], name: str | None) -> tuple[Action | None, list[tuple[Path, Action]]]:
    """What becomes of a field, and which paths go on below it; no name is an item of an array."""
    action: Action | None = None
    below: list[tuple[Path, Action]] = []
    waiting = list(paths)
    while waiting:
        (first, *others), do = waiting.pop()
        rest = tuple(others)
        if first == "**":
            below.append(((first, *rest), do))
            waiting += [(rest, do)] if rest else []
        if first in {"*", name} or (first == "**" and not rest):
            if rest:
                below.append((rest, do))
            elif action is not Action.REMOVE:
                action = do
    return action, list(dict.fromkeys(below))


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


def with_length(head: bytes, length: int, left_out: str | None = None) -> bytes:
    """A head for a body of that length; with the reason, where the body was left out."""
    stale = FRAMING | DIGESTS
    lines = [line for line in unfolded(head) if stale.isdisjoint(name for name, _ in names_in(line))]
    end = lines.pop()
    added = [b"Content-Length: %d\r\n" % length]
    if left_out is not None:
        added.append(b"%b: %b\r\n" % (MARK, left_out.encode()))
    return b"".join([*lines, *added, end])
