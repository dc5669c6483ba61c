"""What goes out for a captured request: the pieces in which it came, each at its time, with what is rewritten."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from strandline.replay.connection import Later
from strandline.replay.pieces import Piece
from strandline.replay.spool import Spool
from strandline.units import Nanos

Due = Callable[[Nanos], Nanos]


class CapturedBody:
    """The body of a captured request, read only when somebody wants it."""

    def __init__(self, spool: Spool, head: int) -> None:
        self._spool = spool
        self._head = head

    @property
    def length(self) -> int:
        return self._spool.size - self._head

    def read(self) -> bytes:
        return self._spool.load(self._spool.size)[self._head :]


def replaced(pieces: Sequence[Piece], old: int, new: bytes) -> Iterator[tuple[Nanos, Callable[[], bytes]]]:
    """The pieces with their first `old` bytes replaced: each gets its share of the new ones, by what it had of the old.

    The last piece that had any of the old bytes gets all that is left of the new ones, and keeps what else it had.
    """
    ends = list(accumulate(piece.size for piece in pieces))
    begun = 0
    for piece, end in zip(pieces, ends, strict=True):
        start = end - piece.size
        if start >= old and start:
            yield piece.at, piece.load
            continue
        until = len(new) if end >= old else len(new) * end // old
        part, begun = new[begun:until], until
        kept = piece.load()[max(0, old - start) :] if end > old else b""
        if part or kept:
            yield piece.at, partial(bytes, part + kept)


def outgoing(
    pieces: Sequence[Piece], captured_head: int, head: bytes, body: bytes | None, due: Due
) -> tuple[bytes, list[Later]]:
    """What to send now, and what later.

    `body` is None where it goes out as it came; a new one goes out over the times of the old.
    """
    if len(pieces) == 1:
        place = pieces[0].place
        captured = place if isinstance(place, bytes) else pieces[0].load()
        return head + (captured[captured_head:] if body is None else body), []
    old, new = (captured_head, head) if body is None else (sum(piece.size for piece in pieces), head + body)
    first, *rest = replaced(pieces, old, new)
    return first[1](), [Later(due(at), load) for at, load in rest]
