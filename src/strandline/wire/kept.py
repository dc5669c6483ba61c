"""A request as a table keeps it: its head whole, its body up to a bound, of the rest the length and a hash.

All requests that are being put together share one bound in bytes. Where it is reached, bodies are kept no more, only
counted and hashed: a row tells what it lacks, and nobody runs out of memory.
"""

from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from strandline.units import Nanos
from strandline.wire.http1 import END_OF_HEAD, MAX_HEAD, REQUEST_LINE

if TYPE_CHECKING:
    from hashlib import _Hash


class Room:
    """What requests that are not told yet may hold together."""

    __slots__ = ("body_bytes", "held", "max_bytes")

    def __init__(self, body_bytes: int, max_bytes: int) -> None:
        self.body_bytes = body_bytes
        """How much of one body is kept."""
        self.max_bytes = max_bytes
        self.held = 0


class Parts(NamedTuple):
    """A request, taken apart."""

    head: bytes
    """Empty where it is not HTTP/1, or not all there."""
    body: bytes
    length: int
    """Of the whole body."""
    digest: str | None
    """The SHA-256 of the whole body as hex, when not all of it was kept."""


class Kept:
    """The bytes of one request."""

    __slots__ = ("_hash", "_head_length", "_parts", "_room", "size")

    def __init__(self, room: Room) -> None:
        self.size = 0
        self._room = room
        self._parts: list[bytes] = []
        self._head_length = 0
        self._hash: _Hash | None = None

    def add(self, at: Nanos, data: bytes) -> None:  # noqa: ARG002  (the transaction has the times of its ends)
        """Bytes that came."""
        self.size += len(data)
        if self._hash is not None:
            self._hash.update(data)
            return
        self._parts.append(data)
        room = self._room
        room.held += len(data)
        if self.size > MAX_HEAD + room.body_bytes or room.held > room.max_bytes:
            self._cut()

    def _cut(self) -> None:
        """Keep no more than what a row shows."""
        room = self._room
        content = b"".join(self._parts)
        head_length = _head_length(content)
        if not head_length and len(content) <= MAX_HEAD:
            return  # the end of its head may yet come
        self._head_length = head_length
        self._hash = sha256(content[head_length:])
        body_bytes = room.body_bytes if room.held <= room.max_bytes else 0
        self._parts = [content[: head_length + body_bytes]]
        room.held -= len(content) - len(self._parts[0])

    def take(self) -> Parts:
        """What it is made of. It holds nothing any more."""
        content = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.release()
        if self._hash is not None:
            at = self._head_length
            return Parts(content[:at], content[at:], self.size - at, self._hash.hexdigest())
        at = _head_length(content)
        body, most = content[at:], self._room.body_bytes
        if len(body) <= most:
            return Parts(content[:at], body, len(body), None)
        return Parts(content[:at], body[:most], len(body), sha256(body).hexdigest())

    def release(self) -> None:
        """Let go of all."""
        self._room.held -= sum(map(len, self._parts))
        self._parts = []


def _head_length(content: bytes) -> int:
    """Up to where it is the head of an HTTP/1 request; 0 where it is none or not all there."""
    end = END_OF_HEAD.search(content)
    return end.end() if end is not None and REQUEST_LINE.match(content) is not None else 0
