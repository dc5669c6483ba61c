"""The bytes of requests that wait to be sent: in memory up to a bound over all of them, beyond it on disk.

What is on disk costs no memory but its place, so reading can always go on: a request of any size can become complete,
which only more reading can bring about.
"""

from pathlib import Path

from strandline.replay.pieces import OnDisk, Piece, Segment
from strandline.units import Nanos

SEGMENT = 64 << 20
OVERHEAD = 2_000
"""What a request takes beside its bytes, about."""


class Spools:
    """The bound over all requests."""

    def __init__(self, max_bytes: int, directory: Path | None = None) -> None:
        self.max_bytes = max_bytes
        self.in_memory = 0
        self.on_disk = 0
        self._directory = directory
        self._segment: Segment | None = None

    def make(self) -> "Spool":
        """The place for a new request."""
        self.in_memory += OVERHEAD
        return Spool(self)

    def count(self, size: int) -> bool:
        """Bytes beside those of requests are held, or no longer; whether there is room for more."""
        self.in_memory += size
        return self.in_memory < self.max_bytes

    def spill(self, data: bytes) -> OnDisk:
        """Put bytes on disk."""
        segment = self._segment
        if segment is None or segment.size >= SEGMENT:
            if segment is not None:
                segment.release()
            segment = self._segment = Segment(self._directory)
        self.on_disk += len(data)
        return OnDisk(segment, segment.append(data), len(data))

    def close(self) -> None:
        """Nothing is written any more."""
        if self._segment is not None:
            self._segment.release()
            self._segment = None


class Spool:
    """The bytes of one request."""

    __slots__ = ("_owner", "held", "pieces", "size")

    def __init__(self, owner: Spools) -> None:
        self._owner = owner
        self.pieces: list[Piece] = []
        self.size = 0
        self.held = OVERHEAD
        """What of it is in memory."""

    def add(self, at: Nanos, data: bytes) -> None:
        """Bytes came at this time."""
        owner = self._owner
        self.size += len(data)
        if owner.in_memory + len(data) > owner.max_bytes:
            self.pieces.append(Piece(at, len(data), owner.spill(data)))
        else:
            owner.in_memory += len(data)
            self.held += len(data)
            self.pieces.append(Piece(at, len(data), data))

    def keep_too(self, size: int) -> int:
        """So many bytes of an answer are kept with it; returned for whoever counts along."""
        self._owner.in_memory += size
        self.held += size
        return size

    def load(self, most: int) -> bytes:
        """The first bytes, at most so many."""
        if len(self.pieces) == 1:
            return self.pieces[0].load()[:most]
        found = bytearray()
        for piece in self.pieces:
            if len(found) >= most:
                break
            found += piece.load()[: most - len(found)]
        return bytes(found)

    def release(self) -> None:
        """The bytes are wanted no more."""
        owner = self._owner
        owner.in_memory -= self.held
        self.held = 0
        for piece in self.pieces:
            if not isinstance(piece.place, bytes):
                owner.on_disk -= piece.size
                piece.place.segment.release()
        self.pieces = []
