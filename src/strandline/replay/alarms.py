"""Callbacks at exact times.

The timers of an event loop are good to a millisecond. A timer of the kernel, watched by the loop like a socket, is good
to some ten microseconds; one of them, set to the earliest of all times asked for, serves any number of callbacks.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from strandline.clock import Clock
from strandline.units import Nanos

CLOCK_MONOTONIC = 1
ABSOLUTE = 1
SECOND = 1_000_000_000
FARTHEST = 1 << 62
"""Beyond it the kernel cannot count; whoever waits so long is looked at once more then."""


class _Setting(ctypes.Structure):
    """`struct itimerspec`: the interval, which stays 0, and the time."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_libc = ctypes.CDLL(None, use_errno=True)


class Alarms:
    """Calls back at times of the monotonic clock, in the order of the times; never early."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._heap: list[tuple[Nanos, int, Callable[[], None]]] = []
        self._numbers = count()
        self._fd = _libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._fd, self._ring)

    def at(self, due: Nanos, callback: Callable[[], None]) -> None:
        """Call back once, at this time or as soon as possible after it. Who no longer wants the call ignores it."""
        heap = self._heap
        if not heap or due < heap[0][0]:
            self._set(due)
        heappush(heap, (due, next(self._numbers), callback))

    def __len__(self) -> int:
        return len(self._heap)

    def close(self) -> None:
        """No more calls."""
        self._heap.clear()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _set(self, due: Nanos) -> None:
        # A time of 0 would stop the timer.
        seconds, rest = divmod(min(max(1, due), FARTHEST), SECOND)
        setting = _Setting(0, 0, seconds, rest)
        if _libc.timerfd_settime(self._fd, ABSOLUTE, ctypes.byref(setting), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # The time was set anew between the ring and this call.
            return
        heap, now = self._heap, self._clock.monotonic()
        while heap and heap[0][0] <= now:
            heappop(heap)[2]()
        if heap:
            self._set(heap[0][0])
