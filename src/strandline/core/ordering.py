"""Rows of several partitions in the order of their time: which may leave, and which partitions to read on.

The rules that this file keeps, for everything up to each partition's end as it was at the start:

1. Rows of one partition leave in the order in which they came.
2. A row's *effective time* is the highest timestamp of its partition so far. Timestamps above a ceiling do not count
   for it, so that one stray date far ahead moves nobody. Effective times never go back, across all partitions.
   Rows of equal time leave by partition, in the order of `keys`: one order for one log, however it is read.
3. A row leaves only when no partition can still bring one that belongs before it: each of them has been read beyond
   that place, or up to its end. A partition of which nothing has been read yet holds everything.
4. Once the buffer is full, only the partitions that all others wait for are read, and only while nothing can leave.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", bound=Hashable)
Longs = NDArray[np.int64]

BEFORE_ALL_TIME = -(2**63)
END_OF_TIME = 2**63 - 1


def effective_times(timestamps: Longs, reached: int, ceiling: int) -> Longs:
    """The running maximum, from the time already reached on; timestamps above the ceiling do not count."""
    counted = np.where(timestamps > ceiling, BEFORE_ALL_TIME, timestamps)
    return np.maximum(np.maximum.accumulate(counted), reached)


@dataclass(slots=True)
class _Partition:
    """What is known of one partition."""

    position: int
    end: int
    reached: int = BEFORE_ALL_TIME
    is_known: bool = False
    """Whether a row of it has been read: until then, its next row may be earlier than any other."""
    waiting: deque[Longs] = field(default_factory=deque)
    """The effective times of the rows that have been read and may not leave yet."""
    sizes: deque[Longs] = field(default_factory=deque)
    """The bytes of every row that is held, leaving or not."""

    @property
    def is_at_its_end(self) -> bool:
        return self.position >= self.end

    def take_before(self, time: int) -> Longs:
        """Take the waiting rows whose time is below the given one."""
        taken = []
        while self.waiting and self.waiting[0][0] < time:
            times = self.waiting.popleft()
            count = int(np.searchsorted(times, time))
            taken.append(times[:count])
            if count < len(times):
                self.waiting.appendleft(times[count:])
        return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)

    def let_go(self, count: int) -> int:
        """Forget the sizes of the first rows held; their sum."""
        freed = 0
        while count:
            sizes = self.sizes.popleft()
            freed += int(sizes[:count].sum())
            if count < len(sizes):
                self.sizes.appendleft(sizes[count:])
            count -= min(count, len(sizes))
        return freed


class Ordering(Generic[Key]):
    """Feed it rows as they are read; pop them in order."""

    def __init__(self, ranges: Mapping[Key, tuple[int, int]], *, ceiling: int, buffer_bytes: int) -> None:
        self.keys = list(ranges)
        self.held_bytes = 0
        self._ceiling = ceiling
        self._buffer_bytes = buffer_bytes
        self._partitions = {key: _Partition(start, end) for key, (start, end) in ranges.items()}
        self._leaving: NDArray[np.int32] = np.empty(0, dtype=np.int32)

    def feed(self, key: Key, timestamps: Longs, sizes: Longs, position: int) -> None:
        """Take rows of a partition that were read, maybe none, with their bytes, and the offset to read next."""
        partition = self._partitions[key]
        partition.position = position
        if len(timestamps):
            times = effective_times(timestamps, partition.reached, self._ceiling)
            partition.reached = int(times[-1])
            partition.is_known = True
            partition.waiting.append(times)
            partition.sizes.append(sizes)
            self.held_bytes += int(sizes.sum())

    def limit(self) -> tuple[int, int] | None:
        """The time and partition up to which rows may leave; None while a partition is unknown."""
        limit = (END_OF_TIME, len(self.keys))
        for number, key in enumerate(self.keys):
            partition = self._partitions[key]
            if partition.is_at_its_end:
                continue
            if not partition.is_known:
                return None
            limit = min(limit, (partition.reached, number))
        return limit

    def pop(self, most: int) -> NDArray[np.int32]:
        """The next rows in order, as the number in `keys` of the partition whose next row it is."""
        if not len(self._leaving):
            self._leaving = self._merge()
        popped, self._leaving = self._leaving[:most], self._leaving[most:]
        for number, count in enumerate(np.bincount(popped, minlength=len(self.keys))):
            self.held_bytes -= self._partitions[self.keys[number]].let_go(int(count))
        return popped

    def _merge(self) -> NDArray[np.int32]:
        limit = self.limit()
        if limit is None:
            return self._leaving
        runs = [self._partitions[key].take_before(_first_to_stay(limit, n)) for n, key in enumerate(self.keys)]
        numbers = np.repeat(np.arange(len(runs), dtype=np.int32), [len(run) for run in runs])
        # Stable, and each partition's times rise: equal times leave by partition, and within one by offset.
        return numbers[np.argsort(np.concatenate(runs), kind="stable")]

    def to_read(self) -> list[Key]:
        """The partitions to read on."""
        unread = [key for key in self.keys if not self._partitions[key].is_at_its_end]
        if self.held_bytes < self._buffer_bytes:
            return unread
        limit = self.limit()
        if limit is None:
            return [key for key in unread if not self._partitions[key].is_known]
        if len(self._leaving) or self._has_rows_up_to(limit):
            return []
        # Full, and nothing may leave: the one that all others wait for is read all the same.
        return [self.keys[limit[1]]]

    def _has_rows_up_to(self, limit: tuple[int, int]) -> bool:
        waiting = ((number, self._partitions[key].waiting) for number, key in enumerate(self.keys))
        return any(times and times[0][0] < _first_to_stay(limit, number) for number, times in waiting)

    @property
    def is_drained(self) -> bool:
        """Whether every row up to each partition's end has left."""
        return not len(self._leaving) and all(p.is_at_its_end and not p.waiting for p in self._partitions.values())


def _first_to_stay(limit: tuple[int, int], number: int) -> int:
    """The earliest time at which rows of a partition stay: up to the limit's partition, those of its own time leave."""
    time, last = limit
    return time + 1 if number <= last and time < END_OF_TIME else time
