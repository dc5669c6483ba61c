"""Events from one thread to an asyncio loop: in order, none lost, bounded by records and bytes.

The writer asks `is_full` before it fetches more. What it has fetched already is always taken, so the bounds are passed
by one fetch at most.
"""

import asyncio
from collections import deque
from contextlib import suppress
from threading import Event as Flag

from strandline.kafka.events import Event


class Mailbox:
    """One thread writes, one coroutine reads."""

    # Each count is written by one side only, so no lock is needed to compare them.
    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_records: int, max_bytes: int) -> None:
        self._loop = loop
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._events: deque[tuple[Event, int, int]] = deque()
        self._arrived = asyncio.Event()
        self._has_room = Flag()
        self._put_records = self._put_bytes = 0
        self._got_records = self._got_bytes = 0

    def put(self, event: Event, records: int = 0, size: int = 0) -> None:
        """Hand an event over; called by the writer."""
        self._put_records += records
        self._put_bytes += size
        self._events.append((event, records, size))
        # A loop that is closed has no reader any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.set)

    def is_full(self) -> bool:
        """Whether as much waits as may."""
        return self._fill() >= 1

    def is_light(self) -> bool:
        """Whether less than half of it waits."""
        return self._fill() < 0.5

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until it is no longer full; called by the writer."""
        self._has_room.clear()
        return not self.is_full() or (self._has_room.wait(timeout) and not self.is_full())

    def interrupt(self) -> None:
        """End a wait for room."""
        self._has_room.set()

    async def get(self) -> Event:
        """The next event; called by the reader. A reader that is cancelled has taken nothing."""
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        event, records, size = self._events.popleft()
        if records:
            was_full = self.is_full()
            self._got_records += records
            self._got_bytes += size
            if was_full and not self.is_full():
                self._has_room.set()
        return event

    def _fill(self) -> float:
        records = (self._put_records - self._got_records) / self._max_records
        return max(records, (self._put_bytes - self._got_bytes) / self._max_bytes)
