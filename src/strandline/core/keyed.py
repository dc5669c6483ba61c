"""Which records go into the next request, where a request keeps no order among its own records.

The rules:

- A request holds at most one record of a key, and requests in flight have no key in common.
- The next record of a key is given out once the one before is finished: accepted, or safe in another place.
- A record that failed is given out again, before any later one of its key.
- A request keeps both bounds, but for one record that is alone.

So a single hot key goes at one record a request. A record is moved twice at most, however the keys are spread.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

MAX_RECORDS = 500


class Keyed(Protocol):
    """What the plan knows of a record."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int: ...


Record = TypeVar("Record", bound=Keyed)


class Plan(Generic[Record]):
    """Takes records in their order and gives them out in requests. It holds what is not finished, and nothing else."""

    __slots__ = ("_behind", "_bytes", "_fresh", "_max_bytes", "_max_records", "_records", "_turn")

    def __init__(self, *, max_records: int = MAX_RECORDS, max_bytes: int) -> None:
        if max_records < 1 or max_bytes < 1:
            raise ValueError("a request holds at least one record and one byte")
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records = 0
        self._bytes = 0
        self._fresh: deque[Record] = deque()
        # Those whose key is theirs already: failed ones, and ones whose forerunner is finished.
        self._turn: deque[Record] = deque()
        # Every key that has a record in flight or whose turn it is, and what waits behind that record.
        self._behind: dict[str, deque[Record] | None] = {}

    @property
    def records(self) -> int:
        """How many are not finished."""
        return self._records

    @property
    def bytes(self) -> int:
        """How large those are."""
        return self._bytes

    @property
    def unplanned(self) -> int:
        """How many may be free to go. Those that are known to wait for another one are not among them."""
        return len(self._fresh) + len(self._turn)

    def offer(self, records: Sequence[Record]) -> None:
        """More records, behind all that came before."""
        self._fresh.extend(records)
        self._records += len(records)
        self._bytes += sum([record.size for record in records])

    def take(self) -> list[Record]:
        """The next request; empty when all that is left waits for what is in flight."""
        request: list[Record] = []
        room = self._max_bytes
        turn, fresh, behind = self._turn, self._fresh, self._behind
        while turn and len(request) < self._max_records:
            room -= turn[0].size
            if room < 0 and request:
                return request
            request.append(turn.popleft())
        while fresh and len(request) < self._max_records:
            record = fresh[0]
            key = record.key
            if key in behind:
                queue = behind[key]
                if queue is None:
                    behind[key] = deque((record,))
                else:
                    queue.append(record)
            else:
                room -= record.size
                if room < 0 and request:
                    return request
                behind[key] = None
                request.append(record)
            fresh.popleft()
        return request

    def finished(self, records: Iterable[Record]) -> None:
        """Records in flight that are accepted, or safe in another place."""
        behind = self._behind
        for record in records:
            self._records -= 1
            self._bytes -= record.size
            queue = behind.pop(record.key)
            if queue is not None:
                self._turn.append(queue.popleft())
                behind[record.key] = queue or None

    def failed(self, records: Iterable[Record]) -> None:
        """Records in flight that are to be given out again."""
        self._turn.extendleft(records)
