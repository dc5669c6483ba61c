"""How many of many intervals of time lie over one another, and how many begin close together.

Their ends are kept in files without names, eight bytes each, and sorted there: any number of them, in any order, costs
no memory to speak of.
"""

import tempfile
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strandline.units import Nanos

if TYPE_CHECKING:
    from collections.abc import Iterator

BUFFER = 1 << 13
CHUNK = 1 << 16

Times = npt.NDArray[np.int64]


class Intervals:
    """Intervals from a start to an end; the end does not count."""

    def __init__(self) -> None:
        self._starts = _Column()
        self._ends = _Column()

    def add(self, start: Nanos, end: Nanos) -> None:
        """One more. It lasts at least for a nanosecond."""
        self._starts.add(start)
        self._ends.add(max(end, start + 1))

    def most_at_once(self) -> int:
        """How many there are at a time at most."""
        starts, ends = self._starts.sorted(), self._ends.sorted()
        most = 0
        for first, chunk in _chunks(starts):
            begun = np.arange(first + 1, first + len(chunk) + 1)
            most = max(most, int((begun - np.searchsorted(ends, chunk, side="right")).max()))
        return most

    def busiest(self, width: Nanos) -> int:
        """How many begin within a time of this width at most."""
        starts = self._starts.sorted()
        most = 0
        for first, chunk in _chunks(starts):
            until = np.searchsorted(starts, chunk + width, side="left")
            most = max(most, int((until - np.arange(first, first + len(chunk))).max()))
        return most

    def close(self) -> None:
        """Give the files back."""
        self._starts.close()
        self._ends.close()


class _Column:
    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="strandline-plan-")  # noqa: SIM115  (closed with the intervals)
        self._buffer = array("q")
        self._is_sorted = True

    def add(self, time: int) -> None:
        self._buffer.append(time)
        if len(self._buffer) >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        self._buffer.tofile(self._file)
        self._buffer = array("q")
        self._is_sorted = False

    def sorted(self) -> Times:
        if self._buffer:
            self._flush()
        self._file.flush()
        if not self._file.tell():
            return np.empty(0, np.int64)
        times: np.memmap[Any, np.dtype[np.int64]] = np.memmap(self._file, np.int64, "r+")
        if not self._is_sorted:
            times.sort()
            self._is_sorted = True
        return times

    def close(self) -> None:
        self._file.close()


def _chunks(times: Times) -> "Iterator[tuple[int, Times]]":
    return ((first, times[first : first + CHUNK]) for first in range(0, len(times), CHUNK))
