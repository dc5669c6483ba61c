"""Rows of several partitions in the order of their time: which may leave, and which partitions to read on.

The rules that this file keeps, for everything up to each partition's end as it was at the start:

1. Rows of one partition leave in the order in which they came.
2. A row's *effective time* is the highest timestamp of its partition so far. Timestamps above a ceiling do not count
   for it, so that one stray date far ahead moves nobody. Effective times never go back, across all partitions.
   Rows of equal time leave by partition, in the order of `keys`: one order for one log, however it is read.
3. A row leaves only when no partition can still bring one that belongs before it: each of them has been read beyond
   that place, or up to its end. A partition of which nothing has been read yet holds everything.
4. A part of the buffer is shared out evenly, so that however far one partition is ahead, there is room for each of the
   others. Rows for which there is no room are put back, to be read again. Once the rest of the buffer is full, only the
   partitions that all others wait for are read, and only while nothing can leave. While rows can leave, nothing is read
   beyond `ahead_bytes`: the buffer is for partitions that wait for each other.

Beyond those ends, once all that was there at the start has left (`go_live`):

5. Rows are merged in the same way, but none waits longer than `idle_after` for a partition that brings nothing. One
   that comes after its time has passed leaves at once, behind later ones of other partitions. Partitions may be added;
   among rows of equal time, theirs are the last.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from strandline.units import Nanos

Key = TypeVar("Key", bound=Hashable)
Longs = NDArray[np.int64]
Limit = tuple[int, int]

BEFORE_ALL_TIME = -(2**63)
END_OF_TIME = 2**63 - 1
NO_END = 2**63 - 1
START = Nanos(0)
# One part in so many of the buffer is shared out; the rest is for whoever comes first.
SHARED_OUT = 4


def effective_times(timestamps: Longs, reached: int, ceiling: int) -> Longs:
    """The running maximum, from the time already reached on; timestamps above the ceiling do not count."""
    counted = np.where(timestamps > ceiling, BEFORE_ALL_TIME, timestamps)
    return np.maximum(np.maximum.accumulate(counted), reached)


class _Rows(NamedTuple):
    """Effective times of rows that wait, and when they came."""

    times: Longs
    since: Nanos


@dataclass(slots=True)
class _Held:
    """Rows that share memory, which is free when the last of them has left."""

    rows: int
    bytes: int


@dataclass(slots=True)
class _Partition:
    """What is known of one partition."""

    position: int
    end: int
    reached: int = BEFORE_ALL_TIME
    is_known: bool = False
    """Whether a row of it has been read: until then, its next row may be earlier than any other."""
    waiting: deque[_Rows] = field(default_factory=deque)
    """The rows that have been read and may not leave yet."""
    held: deque[_Held] = field(default_factory=deque)
    """All rows that have been read, waiting or about to leave."""
    bytes: int = 0
    """What those keep."""
    needs: int = 0
    """The bytes of its next row, where that was put back."""

    @property
    def is_at_its_end(self) -> bool:
        return self.position >= self.end

    def take_before(self, time: int) -> Longs:
        """Take the waiting rows whose time is below the given one."""
        taken = []
        while self.waiting and self.waiting[0].times[0] < time:
            times, since = self.waiting.popleft()
            count = int(np.searchsorted(times, time))
            taken.append(times[:count])
            if count < len(times):
                self.waiting.appendleft(_Rows(times[count:], since))
        return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)

    def let_go(self, count: int) -> int:
        """Forget the first rows held; the bytes that are free now."""
        freed = 0
        while count:
            first = self.held[0]
            gone = min(count, first.rows)
            first.rows -= gone
            count -= gone
            if not first.rows:
                freed += self.held.popleft().bytes
        self.bytes -= freed
        return freed


class Ordering(Generic[Key]):
    """Feed it rows as they are read; pop them in order.

    A range is the first offset, the end, and, where it is not the first that is read of its log, the time that the log
    has reached before it.
    """

    def __init__(
        self,
        ranges: Mapping[Key, tuple[int, int] | tuple[int, int, int]],
        *,
        ceiling: int,
        buffer_bytes: int,
        ahead_bytes: int = 2**63 - 1,
        cutoff: int = END_OF_TIME,
        idle_after: Nanos = START,
    ) -> None:
        self.keys = list(ranges)
        self.held_bytes = 0
        self.is_live = False
        """Whether everything up to each partition's end, or the cutoff, has left."""
        self.ceiling = ceiling
        self.buffer_bytes = buffer_bytes
        self._ahead_bytes = ahead_bytes
        self.share = buffer_bytes // SHARED_OUT // max(1, len(ranges))
        """The bytes of the buffer that are kept for each partition."""
        self._cutoff = cutoff
        self._idle_after = idle_after
        self._partitions = {key: _Partition(*range_) for key, range_ in ranges.items()}
        self._leaving: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self.is_endless = False
        """Whether it goes on beyond the ends."""
        self._notice_live()

    def feed(self, key: Key, timestamps: Longs, bytes_: int, position: int, now: Nanos = START) -> None:
        """Take rows of a partition, maybe none, with the bytes that they keep and the offset to read next."""
        partition = self._partitions[key]
        partition.needs = 0
        if len(timestamps):
            times = effective_times(timestamps, partition.reached, self.ceiling)
            partition.reached = int(times[-1])
            partition.is_known = True
            partition.waiting.append(_Rows(times, now))
            partition.held.append(_Held(len(times), bytes_))
            partition.bytes += bytes_
            self.held_bytes += bytes_
        partition.position = position
        self._notice_live()

    def foresee(self, key: Key, timestamp: int, bytes_: int) -> None:
        """Note the time and the bytes of a partition's next row, which was seen and put back: there was no room."""
        partition = self._partitions[key]
        partition.reached = self._next_time(partition, timestamp)
        partition.is_known = True
        partition.needs = bytes_

    def _next_time(self, partition: _Partition, timestamp: int) -> int:
        return partition.reached if timestamp > self.ceiling else max(partition.reached, timestamp)

    def must_take(self, key: Key, timestamp: int) -> bool:
        """Whether a partition's next row, of this time, is to be taken also when it is larger than all the room."""
        if self.is_endless:
            return self.held_bytes <= self.buffer_bytes  # it waits for no order, and for no other such row
        others = self._limit_of_order(without=key)
        time = self._next_time(self._partitions[key], timestamp)
        return others is not None and (time, self.keys.index(key)) < others

    def limit(self, now: Nanos = START) -> Limit | None:
        """The time and partition up to which rows may leave; None while a partition is unknown."""
        return max(filter(None, [self._limit_of_order(), self._limit_of_patience(now)]), default=None)

    def _limit_of_order(self, without: Key | None = None) -> Limit | None:
        limit = (END_OF_TIME, len(self.keys))
        for number, key in enumerate(self.keys):
            partition = self._partitions[key]
            if partition.is_at_its_end or key == without:
                continue
            if not partition.is_known:
                return None
            limit = min(limit, (partition.reached, number))
        return limit

    def _limit_of_patience(self, now: Nanos) -> Limit | None:
        """The last of the rows that have waited long enough."""
        if not self.is_endless:
            return None
        over = now - self._idle_after
        overdue = (
            (int(rows.times[-1]), number)
            for number, key in enumerate(self.keys)
            for rows in self._partitions[key].waiting
            if rows.since <= over
        )
        return max(overdue, default=None)

    def patience_ends(self) -> Nanos | None:
        """When the row that waits longest has waited long enough; None while rows wait for order alone."""
        if not self.is_endless:
            return None
        since = [p.waiting[0].since for p in self._partitions.values() if p.waiting]
        return Nanos(min(since) + self._idle_after) if since else None

    def pop(self, most: int, now: Nanos = START) -> NDArray[np.int32]:
        """The next rows in order, as the number in `keys` of the partition whose next row it is."""
        if not len(self._leaving):
            self._leaving = self._merge(self.limit(now))
        popped, self._leaving = self._leaving[:most], self._leaving[most:]
        for number, count in enumerate(np.bincount(popped, minlength=len(self.keys)).tolist()):
            if count:
                self.held_bytes -= self._partitions[self.keys[number]].let_go(count)
        self._notice_live()
        return popped

    def _merge(self, limit: Limit | None) -> NDArray[np.int32]:
        if limit is None:
            return self._leaving
        # Rows before and from the cutoff on do not leave together: the moment between them is when all is live.
        cap = END_OF_TIME if self.is_live else self._cutoff
        firsts = (min(cap, _first_to_stay(limit, number)) for number in range(len(self.keys)))
        runs = [self._partitions[key].take_before(first) for key, first in zip(self.keys, firsts, strict=True)]
        numbers = np.repeat(np.arange(len(runs), dtype=np.int32), [len(run) for run in runs])
        # Stable, and each partition's times rise: equal times leave by partition, and within one by offset.
        return numbers[np.argsort(np.concatenate(runs), kind="stable")]

    def to_read(self, on_the_way: int = 0) -> list[Key]:
        """The partitions to read on, the slowest first, with so many bytes on the way; none when the buffer is full."""
        spare = self.spare(on_the_way)
        if spare <= 0 or (self.held_bytes + on_the_way >= self._ahead_bytes and self._can_leave()):
            return []
        slowest = self.awaited()
        found = [
            key
            for key, partition in self._partitions.items()
            if not partition.is_at_its_end
            and (partition.needs <= spare + self._reserve(partition) or key in slowest or self.is_endless)
        ]
        return sorted(found, key=lambda key: self._partitions[key].reached)

    def awaited(self) -> list[Key]:
        """The partitions that all others wait for, to be read also when the buffer is full; none while rows leave."""
        if self._can_leave():
            return []
        limit = self._limit_of_order()
        if limit is None:
            return [key for key, p in self._partitions.items() if not p.is_known and not p.is_at_its_end]
        return self.keys[limit[1] : limit[1] + 1]

    def room(self, key: Key, on_the_way: int = 0) -> int:
        """The bytes that more rows of a partition may take, with so many on the way to others."""
        return max(0, self.spare(on_the_way)) + self._reserve(self._partitions[key])

    def spare(self, on_the_way: int) -> int:
        """What is neither taken nor kept for a partition, with so many bytes on the way; below 0 when that is more."""
        kept = sum(self._reserve(partition) for partition in self._partitions.values())
        return self.buffer_bytes - self.held_bytes - on_the_way - kept

    def _reserve(self, partition: _Partition) -> int:
        """What is left of a partition's share."""
        return 0 if partition.is_at_its_end else max(0, self.share - partition.bytes)

    def _can_leave(self) -> bool:
        limit = self._limit_of_order()
        return len(self._leaving) > 0 or (limit is not None and self._has_rows_up_to(limit))

    def _has_rows_up_to(self, limit: Limit) -> bool:
        waiting = ((number, self._partitions[key].waiting) for number, key in enumerate(self.keys))
        return any(rows and rows[0].times[0] < _first_to_stay(limit, number) for number, rows in waiting)

    def position(self, key: Key) -> int:
        """The offset to read next."""
        return self._partitions[key].position

    def reached(self, key: Key) -> int | None:
        """The highest timestamp of a partition that counts; None before its first row."""
        partition = self._partitions[key]
        return partition.reached if partition.is_known else None

    def held(self, key: Key) -> tuple[int, int]:
        """The rows of a partition that are held, and their bytes."""
        held = self._partitions[key].held
        return sum(rows.rows for rows in held), sum(rows.bytes for rows in held)

    @property
    def is_drained(self) -> bool:
        """Whether every row up to each partition's end has left."""
        return not len(self._leaving) and all(p.is_at_its_end and not p.waiting for p in self._partitions.values())

    def go_live(self) -> None:
        """Read on beyond the ends."""
        self.is_endless = True
        for partition in self._partitions.values():
            partition.end = NO_END

    def add(self, key: Key, position: int) -> None:
        """Take one more partition, from an offset on: beyond the ends, where none waits for another for ever."""
        self.keys.append(key)
        self._partitions[key] = _Partition(position, NO_END)
        self.share = self.buffer_bytes // SHARED_OUT // len(self.keys)

    def _notice_live(self) -> None:
        self.is_live = self.is_live or self.is_drained or self._is_past_cutoff()

    def _is_past_cutoff(self) -> bool:
        limit = self._limit_of_order()
        if len(self._leaving) or limit is None or limit[0] < self._cutoff:
            return False
        return not any(p.waiting and p.waiting[0].times[0] < self._cutoff for p in self._partitions.values())


def _first_to_stay(limit: Limit, number: int) -> int:
    """The earliest time at which rows of a partition stay: up to the limit's partition, those of its own time leave."""
    time, last = limit
    return time + 1 if number <= last and time < END_OF_TIME else time
