"""Responses put together from the bytes that come, each to a request whose method is known."""

from hashlib import sha256
from typing import TYPE_CHECKING

from strandline.units import Nanos
from strandline.wire.answers import KEEP, Answer, Count
from strandline.wire.http1 import FramingError, ResponseFramer

if TYPE_CHECKING:
    from hashlib import _Hash


class Gathering:
    """Puts responses together, one after another, each to a request of the given method.

    What is held of one that comes in several pieces is told to `count`, until it is dropped or the next begins. While
    there is no room, no more is kept.
    """

    __slots__ = (
        "_began",
        "_count",
        "_counted",
        "_ended",
        "_framer",
        "_hash",
        "_keep",
        "_kept",
        "_length",
        "complete",
        "has_begun",
        "is_http",
    )

    def __init__(self, method: bytes = b"GET", keep: int = KEEP, count: Count | None = None) -> None:
        self._framer = ResponseFramer()
        self._count = count
        self._counted = 0
        self._began = self._ended = Nanos(0)
        self.drop()
        self.expect(method, keep)

    def expect(self, method: bytes, keep: int = KEEP) -> None:
        """What comes next is the response to a request of this method; so much of its body is kept."""
        if self.has_begun:
            self.drop()
        self._framer.method = method
        self._keep = keep

    def drop(self) -> None:
        """Let go of what is held."""
        if self._counted and self._count is not None:
            self._count(-self._counted)
            self._counted = 0
        self._framer.next()
        self.has_begun = False
        """Whether any byte has come, interim responses included."""
        self.is_http = True
        self.complete = False
        """Whether the response has ended."""
        self._kept = b""
        self._length = 0
        self._hash: _Hash | None = None

    @property
    def is_opaque(self) -> bool:
        """Whether the connection no longer carries HTTP/1."""
        return self._framer.opaque

    def feed(self, data: bytes, start: int, at: Nanos) -> int:
        """Take bytes; up to where they belong to this response. What is not HTTP/1 belongs to it until it is ended."""
        if not self.has_begun:
            self.has_begun = True
            self._began = at
        self._ended = at
        framer = self._framer
        if self.is_http:
            try:
                stop = framer.feed(data, start)
            except FramingError:
                self.is_http = False
            else:
                body_at = framer.body_at
                if body_at < stop and framer.head:
                    self._add(data[body_at:stop])
                self.complete = framer.complete
                if not self.complete:
                    self._tell()
                return stop
        self._add(data[start:])
        self._tell()
        return len(data)

    def _tell(self) -> None:
        more = len(self._kept) - self._counted
        if more and self._count is not None:
            self._counted += more
            if not self._count(more):
                self._keep = self._counted

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._hash is None:
            if self._length <= self._keep:
                self._kept = self._kept + part if self._kept else part
                return
            self._hash = sha256(self._kept)
            room = self._keep - len(self._kept)
            self._kept += part[:room]
        self._hash.update(part)

    def end(self) -> Answer | None:
        """The response as far as it came, or None if not even its head did. No more of it will come."""
        framer, is_http = self._framer, self.is_http
        if is_http and not framer.head:
            return None
        return Answer(
            framer.status if is_http else 0,
            framer.head,
            self._kept,
            self._length,
            self._hash.hexdigest() if self._hash else None,
            is_http and (framer.complete or framer.end()),
            self._began,
            self._ended,
        )
