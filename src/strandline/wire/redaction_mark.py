"""What redaction has changed in a recorded message, as a header that it adds says: the mark.

`X-Strandline-Redacted: too large` is a body that was left out, and why; `header set-cookie` is a header that was
hashed, removed or changed; `field user.card.number` a rule for JSON fields that the body had. Several have commas
between.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

MARK = "X-Strandline-Redacted"
IN_HEAD = MARK.encode()
NAME = MARK.lower()
SAFE = "*.$"
FRAMING = frozenset({b"content-length", b"transfer-encoding", b"trailer"})
DIGESTS = frozenset({b"content-md5", b"digest", b"content-digest", b"repr-digest"})
"""They would no longer be true of a changed body, and a plain digest of a short secret gives it away."""
OF_BODY = frozenset(name.decode() for name in FRAMING | DIGESTS)
"""What says something of a body, and is not of the one that was recorded where that was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """What of a message is not what it was."""

    headers: frozenset[str] = frozenset()
    """Names in small letters."""
    fields: tuple[str, ...] = ()
    """Rules for fields of the body."""
    is_left_out: bool = False
    """Whether the body was left out."""

    @property
    def has_other_body(self) -> bool:
        """Whether the body is not what it was."""
        return self.is_left_out or bool(self.fields)


NOTHING = Redacted()


def mark_line(*, left_out: str | None = None, headers: Iterable[str] = (), fields: Iterable[str] = ()) -> bytes:
    """The line of a head that says so; none where there is nothing to say."""
    parts = [] if left_out is None else [left_out]
    parts += [f"header {quote(name, SAFE)}" for name in sorted(headers)]
    parts += [f"field {quote(rule, SAFE)}" for rule in sorted(fields)]
    return f"{MARK}: {', '.join(parts)}\r\n".encode() if parts else b""


def read_mark(value: str | None) -> Redacted:
    """What the value of the header says; whatever else it may be stands for a body that was left out."""
    if value is None:
        return NOTHING
    headers, fields, is_left_out = set(), [], False
    for part in filter(None, map(str.strip, value.split(","))):
        kind, _, name = part.partition(" ")
        if kind == "header":
            headers.add(unquote(name).lower())
        elif kind == "field":
            fields.append(unquote(name))
        else:
            is_left_out = True
    return Redacted(headers=frozenset(headers), fields=tuple(fields), is_left_out=is_left_out)


def has_other_body(head: bytes) -> bool:
    """Whether a head says that the body behind it is not what it was."""
    if head.find(IN_HEAD) < 0:
        return False
    lines = (line.decode("latin-1").partition(":") for line in head.split(b"\n"))
    return any(read_mark(value).has_other_body for name, _, value in lines if name.strip().lower() == NAME)
