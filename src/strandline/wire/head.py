"""The head of an HTTP/1 message, first line to empty line, as values; an edit leaves every other line byte for byte.

A captured head is what some client sent, so this reads what clients send: lines that end in LF alone, values folded
over several lines, any case of names. What no client means is refused: a name with a space in it, a line without colon.
"""

import re
from typing import Self

from strandline.errors import MalformedHead

CRLF, LF = b"\r\n", b"\n"
FOLD = (b" ", b"\t")
NAME = re.compile(rb"[^\x00-\x20\x7f:]+")
STATUS = re.compile(rb"HTTP/\d\.\d (\d{3})(?=[ \r\n])")
# What would end a line or a field early. Everything else is the target's to judge.
BREAKS = re.compile(r"[\r\n\0]")
BLANKS = re.compile(r"[\x00-\x20\x7f]")
# The same as what a whole text is to be, written so that Spark's patterns mean what ours do.
WORD = r"[\x21-\x7e\x80-\xff]"
NAME_SIGN = r"[\x21-\x39\x3b-\x7e\x80-\xff]"
VALUE_SIGN = r"[\x01-\x09\x0b\x0c\x0e-\xff]"


def request_line(head: bytes) -> tuple[str, str, str]:
    """The method, the target and the version. A target may hold spaces: some clients send such."""
    method, _, rest = head[: head.find(LF) + 1].decode("latin-1").rstrip("\r\n").partition(" ")
    target, _, version = rest.rpartition(" ")
    if not method or not target or not version.startswith("HTTP/"):
        raise MalformedHead("the first line is no request line")
    return method, target, version


def status_of(head: bytes) -> int:
    """The status of a response."""
    found = STATUS.match(head)
    if found is None:
        raise MalformedHead("the first line is no status line")
    return int(found[1])


class Head:
    """A head to look into and to edit. It is read when first asked, so a head that nobody asks costs nothing.

    Names are compared without regard to case. Values are latin-1, as HTTP has them.
    """

    __slots__ = ("_first_line", "_lines", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._first_line = b""
        self._lines: list[tuple[bytes, bytes]] | None = None

    @property
    def first_line(self) -> bytes:
        """The first line with its line end."""
        self._parsed()
        return self._first_line

    @property
    def lines(self) -> list[tuple[bytes, bytes]]:
        """Each field: its name as written, and its raw line or lines with their line ends."""
        return list(self._parsed())

    def get(self, name: str) -> str | None:
        """The first value of a field, or None."""
        return next(iter(self.all(name)), None)

    def all(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        wanted = _key(name)
        return [_value(line) for key, line in self._parsed() if key.lower() == wanted]

    def set(self, name: str, value: str) -> None:
        """Give a field this one value: in the place of its first line, under the name written there, or at the end."""
        wanted, lines = _key(name), self._parsed()
        new = _text(value)
        at = next((index for index, (key, _) in enumerate(lines) if key.lower() == wanted), None)
        if at is None:
            self.add(name, value)
            return
        key, line = lines[at]
        rest = [pair for pair in lines[at + 1 :] if pair[0].lower() != wanted]
        self._lines = [*lines[:at], (key, b"%b: %b%b" % (key, new, _line_end(line))), *rest]

    def add(self, name: str, value: str) -> None:
        """One more line at the end."""
        _key(name)
        key = name.encode("latin-1")
        self._parsed().append((key, b"%b: %b%b" % (key, _text(value), _line_end(self._raw))))

    def remove(self, name: str) -> None:
        """Take all lines of a field out. One that is not there is no error."""
        wanted = _key(name)
        self._lines = [pair for pair in self._parsed() if pair[0].lower() != wanted]

    def with_target(self, target: str, *, method: str | None = None) -> Self:
        """The same head for another target, and where given for another method."""
        old_method, _, version = request_line(self.first_line)
        words = (method or old_method, target, version)
        if not target or any(BLANKS.search(word) or not _fits(word) for word in words[:2]):
            raise ValueError("a method and a target are latin-1, without spaces and signs that end a line")
        line = " ".join(words).encode("latin-1") + _line_end(self.first_line)
        return type(self)(b"".join((line, *(raw for _, raw in self._parsed()), self.end)))

    def to_bytes(self) -> bytes:
        """The head as it goes out."""
        if self._lines is None:
            return self._raw
        return b"".join((self._first_line, *(line for _, line in self._lines), self.end))

    @property
    def end(self) -> bytes:
        """The empty line that ends it."""
        return _line_end(self._raw)

    def _parsed(self) -> list[tuple[bytes, bytes]]:
        if self._lines is None:
            self._first_line, self._lines = _parse(self._raw)
        return self._lines


def splice_host(head: bytes, host: bytes) -> bytes:
    """The head with another Host: what `Head(head).set("Host", host)` does, found by searching bytes only."""
    lower = head.lower()
    at = lower.find(b"\nhost:")
    end = head.find(LF, at + 1)
    # Rare: none, several, or one that is folded.
    if at < 0 or end < 0 or head[end + 1 : end + 2] in FOLD or lower.find(b"\nhost:", end) >= 0:
        edited = Head(head)
        edited.set("Host", host.decode("latin-1"))
        return edited.to_bytes()
    if head[end - 1 : end] == b"\r":
        end -= 1
    return head[: at + 5] + b": " + host + head[end:]


def add_header(head: bytes, line: bytes) -> bytes:
    """The head with one more line, given without its line end, before the empty one."""
    # `in` takes bytes for a number first, and makes an error of it.
    if line.find(LF) >= 0 or line.find(b"\r") >= 0:
        raise ValueError("a header line holds no line end")
    if head.endswith(b"\n\r\n"):
        return head[:-2] + line + b"\r\n\r\n"
    if head.endswith(b"\n\n"):
        return head[:-1] + line + b"\n\n"
    raise MalformedHead("the head does not end in an empty line")


def _parse(raw: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    first, *rest = raw.split(LF)
    if len(rest) < 2 or rest[-1] or rest[-2] not in {b"", b"\r"}:
        raise MalformedHead("the head does not end in an empty line")
    if not first.rstrip(b"\r"):
        raise MalformedHead("the first line is empty")
    lines: list[tuple[bytes, bytes]] = []
    for line in rest[:-2]:
        if line.startswith(FOLD):
            if not lines:
                raise MalformedHead("the first field begins with a space")
            name, begun = lines[-1]
            lines[-1] = (name, begun + line + LF)
            continue
        name, colon, _ = line.partition(b":")
        if not colon or not NAME.fullmatch(name):
            raise MalformedHead(f"line {len(lines) + 2} is no field")
        lines.append((name, line + LF))
    return first + LF, lines


def _line_end(line: bytes) -> bytes:
    return CRLF if line.endswith(CRLF) else LF


def _value(line: bytes) -> str:
    parts = line[line.index(b":") + 1 :].decode("latin-1").split("\n")
    return " ".join(filter(None, (part.strip(" \t\r") for part in parts)))


def _key(name: str) -> bytes:
    if not _fits(name) or not NAME.fullmatch(name.encode("latin-1")):
        raise ValueError(f"{name!r} is no name of a header")
    return name.encode("latin-1").lower()


def _text(value: str) -> bytes:
    if BREAKS.search(value) or not _fits(value):
        raise ValueError("a header's value is latin-1, without signs that end a line")
    return value.encode("latin-1")


def _fits(text: str) -> bool:
    return not text or max(text) <= "\xff"
