"""Pieces of requests: bytes with their time, in memory or in a file without a name."""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

from strandline.errors import SpoolFailed
from strandline.units import Nanos


class Segment:
    """A file without a name, which is gone when nothing in it is wanted any more."""

    __slots__ = ("_fd", "_users", "size")

    def __init__(self, directory: Path | None) -> None:
        try:
            self._fd, path = tempfile.mkstemp(prefix="strandline-spool-", dir=directory)
            Path(path).unlink()
        except OSError as error:
            raise SpoolFailed(str(error)) from error
        self._users = 1
        self.size = 0

    def append(self, data: bytes) -> int:
        start = self.size
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._fd, view, self.size)
            except OSError as error:
                raise SpoolFailed(str(error.strerror)) from error
            self.size += written
            view = view[written:]
        self._users += 1
        return start

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._fd, length, start)

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            os.close(self._fd)


class OnDisk(NamedTuple):
    segment: Segment
    start: int
    length: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Bytes that came together, and when."""

    at: Nanos
    size: int
    place: bytes | OnDisk

    def load(self) -> bytes:
        """The bytes."""
        if isinstance(self.place, bytes):
            return self.place
        return self.place.segment.read(self.place.start, self.place.length)
