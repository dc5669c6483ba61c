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
from dataclasses import dataclass
from threading import Lock
from typing import Generic, NewType, Protocol, Self, TypeVar

from strandline.errors import PositionError
from strandline.units import Nanos

Ticket = NewType("Ticket", int)


class Ordered(Protocol):
    """Anything with an order of its own: Kafka offsets, (commit LSN, ordinal) pairs, ..."""

    def __lt__(self, other: Self, /) -> bool: ...


P = TypeVar("P", bound=Ordered)


@dataclass(frozen=True, slots=True)
class Oldest(Generic[P]):
    """The unfinished item that holds the frontier back, and for how long it has been in flight."""

    position: P
    age: Nanos


class Frontier(Generic[P]):
    """Hands out a ticket per item and tells, as tickets are finished, the last position up to which all is done."""

    # Tickets count up over all generations, and entry i belongs to ticket _head + i. A ticket below _head is therefore
    # either passed or of an earlier generation, and both are ignored alike: no generation is stored per ticket.
    __slots__ = ("_finished", "_generation", "_head", "_last", "_lock", "_next", "_position", "_positions", "_since")

    def __init__(self) -> None:
        self._lock = Lock()
        self._generation = 0
        self._head = 0
        self._next = 0
        self._positions: deque[P] = deque()
        self._since: deque[Nanos] = deque()
        self._finished = bytearray()
        self._last: P | None = None
        self._position: P | None = None

    def register(self, position: P, now: Nanos) -> Ticket:
        """Take a position into flight."""
        last = self._last
        if last is None or last < position:
            return self._append(position, now)
        with self._lock:
            # Only here can the position be one that the frontier is passing at this very moment.
            if position < last or not self._positions:
                raise PositionError(position, last)
            return self._append(position, now)

    def _append(self, position: P, now: Nanos) -> Ticket:
        # Needs no lock: each step is atomic, and an entry counts from the last step on.
        self._last = position
        self._positions.append(position)
        self._since.append(now)
        self._finished.append(0)
        ticket = self._next
        self._next = ticket + 1
        return Ticket(ticket)

    def done(self, ticket: Ticket) -> P | None:
        """Finish a ticket; the new frontier if it moved, else None."""
        with self._lock:
            index = ticket - self._head
            if index < 0:
                return None
            self._finished[index] = 1
            return None if index else self._advance()

    def _advance(self) -> P | None:
        run = self._finished.find(0)
        if run < 0:
            run = len(self._finished)
        del self._finished[:run]
        self._head += run
        next_position, next_since = self._positions.popleft, self._since.popleft
        passed = [next_position() for _ in range(run)]
        for _ in range(run):
            next_since()
        if self._positions:
            # The oldest unfinished ticket may share its position with tickets that have just been passed.
            held = self._positions[0]
            while passed and not passed[-1] < held:
                passed.pop()
        if not passed:
            return None
        self._position = passed[-1]
        return self._position

    def next_generation(self) -> int:
        """Begin a new ownership of the log: forget all in flight and the frontier; earlier tickets are void."""
        with self._lock:
            self._generation += 1
            self._head = self._next
            self._positions.clear()
            self._since.clear()
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
            return self._finished.count(0)

    @property
    def beyond(self) -> int:
        """How many tickets lie beyond the frontier, finished or not: what a restart from the frontier repeats."""
        return len(self._finished)

    def oldest(self, now: Nanos) -> Oldest[P] | None:
        """What holds the frontier, or None when nothing is in flight."""
        with self._lock:
            if not self._positions:
                return None
            return Oldest(self._positions[0], Nanos(now - self._since[0]))
