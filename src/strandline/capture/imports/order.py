"""The records of every connection in the order of their numbers, whatever order they come in.

They are read twice. The first time the numbers are noted; so the second time it is known which will never come, and a
record waits only for one that will. What waits is in memory, and from `IN_MEMORY` on in a file.
"""

import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from strandline.capture.imports.items import Connection, Item, LeftOut, Record
from strandline.errors import StrandlineError

MOST_CONNECTIONS = 2_000_000
"""Half a kilobyte each, so a gigabyte at most."""
IN_MEMORY = 64 << 20
MOST_ON_DISK = 64 << 30
MOST_HELD = 1_000_000
SHOWN_GAPS = 10


class Gap(NamedTuple):
    """Records of a connection that are not there, the first and the last of them."""

    connection: Connection
    first: int
    last: int

    def __str__(self) -> str:
        which = f"record {self.first} is" if self.first == self.last else f"records {self.first} to {self.last} are"
        return f"connection '{self.connection.name}': {which} missing"


class Numbers:
    """A set of numbers that lie close together, as ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Behind the last one of each range."""

    def add(self, number: int) -> bool:
        """Whether it was not there yet."""
        at = bisect_right(self._starts, number)
        if at and number < self._ends[at - 1]:
            return False
        ends_here = bool(at) and self._ends[at - 1] == number
        begins_behind = at < len(self._starts) and self._starts[at] == number + 1
        if ends_here and begins_behind:
            self._ends[at - 1] = self._ends.pop(at)
            del self._starts[at]
        elif ends_here:
            self._ends[at - 1] += 1
        elif begins_behind:
            self._starts[at] -= 1
        else:
            self._starts.insert(at, number)
            self._ends.insert(at, number + 1)
        return True

    def at_or_after(self, number: int) -> int | None:
        """The lowest one that is not below a number."""
        at = bisect_right(self._ends, number)
        return max(number, self._starts[at]) if at < len(self._starts) else None

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._starts, number)
        return bool(at) and number < self._ends[at - 1]

    def gaps(self) -> Iterator[tuple[int, int]]:
        """What is missing from 1 on, as first and last."""
        for end, start in zip([1, *self._ends], self._starts, strict=False):
            if end < start:
                yield end, start - 1


@dataclass
class Mending:
    """What was found out about the connections by the first reading."""

    without_start: int = 0
    """How many lack their first record."""
    gaps: int = 0
    shown: tuple[Gap, ...] = ()
    """The first few of them."""


def in_order(read: Callable[[], Iterable[Item]], mending: Mending) -> Iterator[Item]:
    """Call `read` twice, and give every record once; what is broken is given by the first reading."""
    survey: dict[Connection, Numbers] = {}
    for item in read():
        if isinstance(item, Record):
            if item.connection not in survey:
                if len(survey) == MOST_CONNECTIONS:
                    raise StrandlineError(f"more than {MOST_CONNECTIONS:,} connections; import them in parts")
                survey[item.connection] = Numbers()
            survey[item.connection].add(item.number)
        else:
            yield item
    for connection, numbers in survey.items():
        mending.without_start += 1 not in numbers
        for gap in numbers.gaps():
            mending.gaps += 1
            if len(mending.shown) < SHOWN_GAPS:
                mending.shown += (Gap(connection, *gap),)
    with _Sequence(survey) as sequence:
        for item in read():
            if isinstance(item, Record):
                yield from sequence.take(item)
        sequence.check_end()


COMPLETE = Numbers()
"""Stands for those of a connection that has been given whole."""


def _changed(connection: Connection) -> StrandlineError:
    return StrandlineError(f"connection '{connection.name}': its records changed while they were read")


class _Open:
    """A connection of which more will come."""

    __slots__ = ("held", "next")

    def __init__(self, first: int | None) -> None:
        self.next = first
        self.held: dict[int, tuple[int, int, Record]] = {}


class _Sequence:
    def __init__(self, survey: dict[Connection, Numbers]) -> None:
        self._survey = survey
        self._open: dict[Connection, _Open] = {}
        self._spill = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  (closed by __exit__)
        self._held = self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()

    def take(self, record: Record) -> Iterator[Item]:
        """A record came; those that may go on by it."""
        connection = record.connection
        numbers = self._survey.get(connection)
        if numbers is COMPLETE:
            yield LeftOut("repeated record")
            return
        if numbers is None or record.number not in numbers:
            raise _changed(connection)
        state = self._open.get(connection)
        if state is None:
            state = self._open[connection] = _Open(numbers.at_or_after(1))
        if state.next is None or record.number < state.next or record.number in state.held:
            yield LeftOut("repeated record")
        elif record.number > state.next:
            state.held[record.number] = self._put(record)
        else:
            yield record
            state.next = numbers.at_or_after(record.number + 1)
            while state.next in state.held:
                yield self._get(*state.held.pop(state.next))
                state.next = numbers.at_or_after(state.next + 1)
            if state.next is None:
                del self._open[connection]
                self._survey[connection] = COMPLETE

    def check_end(self) -> None:
        """All that was there the first time has come again."""
        for connection, numbers in self._survey.items():
            if numbers is not COMPLETE:
                raise _changed(connection)

    def _put(self, record: Record) -> tuple[int, int, Record]:
        size = len(record.value)
        if self._held == MOST_HELD or self._end + size > MOST_ON_DISK:
            bound = f"{MOST_HELD:,} records or {MOST_ON_DISK:,} bytes"
            raise StrandlineError(f"more than {bound} wait for records that come before them; import them in parts")
        self._spill.seek(self._end)
        self._spill.write(record.value)
        place, self._end = self._end, self._end + size
        self._held += 1
        return place, size, replace(record, value=b"")

    def _get(self, place: int, size: int, record: Record) -> Record:
        self._spill.seek(place)
        value = self._spill.read(size)
        self._held -= 1
        if not self._held:
            self._end = 0
        return replace(record, value=value)
