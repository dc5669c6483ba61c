"""The contiguous acknowledgement frontier: how far into an ordered log all is done.

The rules that this file keeps:

1. The frontier never passes a position that has an unfinished ticket.
2. Once all tickets are done, in whatever order, the frontier is the last position registered.
3. A ticket counts once. Finishing it again, or finishing one of an earlier generation, changes nothing.
4. Positions are registered in rising order. Equal ones share a position, which is passed when all its tickets are
   done; so the tickets of one position are all registered before the last of them is finished.

The thread that reads the log calls `register` and `next_generation`; all else may be called from any thread.
"""

from collections import deque
from threading import Lock
from typing import Generic, NewType

from strandline.core.oldest import Oldest, P
from strandline.errors import PositionError
from strandline.units import Nanos

Ticket = NewType("Ticket", int)


class Frontier(Generic[P]):
    """Hands out a ticket per item and tells, as tickets are finished, the last position up to which all is done."""

    # Tickets count up over all generations, and entry i belongs to ticket _head + i. A ticket below _head is therefore
    # either passed or of an earlier generation, and both are ignored alike: no generation is stored per ticket.
    #
    # The reader shares one thing with the finishers: _entries, to which it adds by one atomic append. All else is
    # either the reader's own (_next, _last) or touched only under the lock.
    __slots__ = ("_entries", "_finished", "_generation", "_head", "_last", "_lock", "_next", "_position")

    def __init__(self) -> None:
        self._lock = Lock()
        self._generation = 0
        self._next = 0
        self._last: P | None = None
        self._head = 0
        self._entries: deque[tuple[P, Nanos]] = deque()
        self._finished = bytearray()
        self._position: P | None = None

    def register(self, position: P, now: Nanos) -> Ticket:
        """Take a position into flight."""
        last = self._last
        if last is None or last < position:
            self._entries.append((position, now))
        else:
            with self._lock:
                # Only here can the position be one that the frontier is passing at this very moment.
                if position < last or not self._entries:
                    raise PositionError(position, last)
                self._entries.append((position, now))
        self._last = position
        ticket = self._next
        self._next = ticket + 1
        return Ticket(ticket)

    def done(self, ticket: Ticket) -> P | None:
        """Finish a ticket; the new frontier if it moved, else None."""
        with self._lock:
            index = ticket - self._head
            if index < 0:
                return None
            finished = self._finished
            try:
                finished[index] = 1
            except IndexError:
                # Flags are made up to the highest ticket finished so far.
                finished.extend(bytes(index - len(finished)))
                finished.append(1)
            return self._advance() if finished[0] else None

    def _advance(self) -> P | None:
        entries, finished = self._entries, self._finished
        run = finished.find(0)
        if run < 0:
            run = len(finished)
        if run < len(entries):
            # Finished tickets that share their position with an unfinished one wait for it.
            held = entries[run][0]
            while run and not entries[run - 1][0] < held:
                run -= 1
        if not run:
            return None
        del finished[:run]
        self._head += run
        for _ in range(run - 1):
            entries.popleft()
        self._position = entries.popleft()[0]
        return self._position

    def next_generation(self) -> int:
        """Begin a new ownership of the log: forget all in flight and the frontier; earlier tickets are void."""
        with self._lock:
            self._generation += 1
            self._head = self._next
            self._entries.clear()
            self._finished.clear()
            self._last = self._position = None
            return self._generation

    @property
    def generation(self) -> int:
        """How often ownership has begun anew."""
        return self._generation

    @property
    def position(self) -> P | None:
        """The last position up to which all is done, or None while there is none in this generation."""
        return self._position

    @property
    def in_flight(self) -> int:
        """How many tickets are unfinished."""
        with self._lock:
            return len(self._entries) - self._finished.count(1)

    @property
    def beyond(self) -> int:
        """How many tickets lie beyond the frontier, finished or not: what a restart from the frontier repeats."""
        return len(self._entries)

    def oldest(self, now: Nanos) -> Oldest[P] | None:
        """What holds the frontier, or None when nothing is in flight."""
        with self._lock:
            index = self._finished.find(0)
            if index < 0:
                index = len(self._finished)
            if index >= len(self._entries):
                return None
            position, since = self._entries[index]
            return Oldest(position, Nanos(now - since))
