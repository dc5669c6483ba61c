"""Transactions that are streamed before they are committed: kept in memory up to a bound, beyond it on disk.

- Frames of a transaction stay in the order in which they came, those of all its subtransactions together.
- What belongs to a subtransaction that was rolled back is left out; but the tables that were described in it stay
  described, for Postgres describes a table once a transaction.
- A file has no name, so that it is gone with the process, however that ends.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO

from strandline.errors import SpillFailed

XID = Struct(">xI")
LENGTH = Struct(">I")
# What a frame takes in memory beside its bytes: the head of the object and its place in the list.
OVERHEAD = 41
MAX_DISK = 64 << 30
DESCRIBING = frozenset(b"RY")


class Streamed:
    """The frames of one transaction in progress. Made by `Spill`."""

    def __init__(self, spill: "Spill") -> None:
        self._spill = spill
        self._frames: list[bytes] = []
        self._file: BinaryIO | None = None
        self._aborted: set[int] = set()
        self.in_memory = 0
        self.on_disk = 0
        self.has_messages = False
        """Of which it is not told which subtransaction they are of."""
        self.described: dict[int, int] = {}
        """When each relation was described last, by the caller's count."""

    def add(self, frame: bytes) -> None:
        """A frame with the id of its (sub)transaction behind its kind."""
        self._frames.append(frame)
        self.in_memory += len(frame) + OVERHEAD
        self._spill.count(len(frame) + OVERHEAD)

    def abort(self, subxid: int) -> None:
        """A subtransaction was rolled back. It brings nothing any more."""
        self._aborted.add(subxid)
        before = self.in_memory
        self._frames = [frame for frame in self._frames if self._counts(frame)]
        self.in_memory = sum(map(len, self._frames)) + OVERHEAD * len(self._frames)
        self._spill.count(self.in_memory - before)

    def _counts(self, frame: bytes) -> bool:
        return frame[0] in DESCRIBING or XID.unpack_from(frame)[0] not in self._aborted

    def write_out(self, directory: Path | None) -> int:
        """Move what is in memory to disk; how many bytes that is there."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="strandline-stream-", dir=directory)  # noqa: SIM115
        written = sum(map(len, self._frames)) + LENGTH.size * len(self._frames)
        for frame in self._frames:
            self._file.write(LENGTH.pack(len(frame)))
            self._file.write(frame)
        self._frames = []
        self.in_memory = 0
        self.on_disk += written
        return written

    def frames(self) -> Iterator[bytes]:
        """All that was not rolled back, in order, as if it had not been streamed: without the ids."""
        if self._file is not None:
            try:
                self._file.seek(0)
                while head := self._file.read(LENGTH.size):
                    frame = self._file.read(LENGTH.unpack(head)[0])
                    if self._counts(frame):
                        yield frame[:1] + frame[5:]
            except OSError as error:
                raise SpillFailed(f"a transaction kept on disk cannot be read: {error.strerror}") from error
        for frame in self._frames:
            yield frame[:1] + frame[5:]

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        self._spill.count(-self.in_memory)
        self._spill.on_disk -= self.on_disk
        self._frames = []
        self.in_memory = self.on_disk = 0
        if self._file is not None:
            self._file.close()
            self._file = None


class Spill:
    """All transactions in progress, and the bounds over them together."""

    def __init__(self, *, max_memory: int = 32 << 20, max_disk: int = MAX_DISK, directory: Path | None = None) -> None:
        self.in_memory = 0
        self.on_disk = 0
        self._max_memory = max_memory
        self._max_disk = max_disk
        self._directory = directory
        self._streams: dict[int, Streamed] = {}

    def open(self, xid: int) -> Streamed:
        """The transaction of this id, from its first frame on."""
        found = self._streams.get(xid)
        if found is None:
            found = self._streams[xid] = Streamed(self)
        return found

    def pop(self, xid: int) -> Streamed | None:
        """Let go of a transaction that has ended; whoever takes it closes it."""
        return self._streams.pop(xid, None)

    def count(self, change: int) -> None:
        """So many bytes more are in memory. Beyond the bound, the largest transaction goes to disk."""
        self.in_memory += change
        if change > 0 and self.in_memory > self._max_memory and self._streams:
            largest = max(self._streams.values(), key=lambda stream: stream.in_memory)
            self.in_memory -= largest.in_memory
            try:
                self.on_disk += largest.write_out(self._directory)
            except OSError as error:
                raise SpillFailed(f"a transaction in progress cannot be kept on disk: {error.strerror}") from error
            if self.on_disk > self._max_disk:
                raise SpillFailed(f"transactions in progress take more than {self._max_disk} bytes on disk")

    def close(self) -> None:
        """Forget all of them."""
        for stream in self._streams.values():
            stream.close()
        self._streams = {}
