"""A response as it is kept: its head whole, its body up to a bound, of the rest the length and a hash."""

from collections.abc import Callable

import msgspec

from strandline.units import Nanos

KEEP = 64 << 10


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A response, bodies as they lie on the wire."""

    status: int
    """0 when it is not HTTP/1."""
    head: bytes
    body: bytes
    length: int
    """Of the whole body."""
    digest: str | None
    """The SHA-256 of the whole body, when not all of it was kept."""
    complete: bool
    """Whether it ended as its head says."""
    began: Nanos
    ended: Nanos

    @property
    def kept(self) -> int:
        """How many bytes of it are held."""
        return len(self.head) + len(self.body)

    @property
    def cut(self) -> bool:
        """Whether the body is longer than what was kept of it."""
        return self.digest is not None


Count = Callable[[int], bool]
"""Told of bytes that are held, or no longer; says whether there is room for more."""
