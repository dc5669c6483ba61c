"""The last part of a log, in memory: what came lately, up to so many bytes.

It holds everything from `first` up to, and without, `end`. Places in between that have no item are places at which
there is nothing to hold, such as the markers of transactions.
"""

from bisect import bisect_left
from typing import Generic, TypeVar, cast

Item = TypeVar("Item")


class Recent(Generic[Item]):
    """Grows at its end, and forgets from its beginning."""

    __slots__ = ("_begin", "_bytes", "_items", "_most", "_places", "_sizes", "end", "first")

    def __init__(self, start: int, *, most_bytes: int) -> None:
        self.first = self.end = start
        self._most = most_bytes
        self._bytes = 0
        self._begin = 0
        """How many at the beginning of the lists are forgotten already."""
        self._places: list[int] = []
        self._items: list[Item | None] = []
        self._sizes: list[int] = []

    @property
    def nbytes(self) -> int:
        return self._bytes

    def add(self, place: int, item: Item, size: int) -> None:
        """Hold an item at its place, which is at the end or behind it."""
        if place < self.end:
            raise ValueError(f"{place} lies before the end, {self.end}")
        self._places.append(place)
        self._items.append(item)
        self._sizes.append(size)
        self._bytes += size
        self.end = place + 1
        while self._bytes > self._most:
            self._forget()

    def reach(self, end: int) -> None:
        """Know that there is nothing more to hold up to a place."""
        self.end = max(self.end, end)

    def since(self, place: int, most: int) -> tuple[list[Item], int]:
        """The first items from a place on, and the place behind the last of them: the end where these are all."""
        low = max(self._begin, bisect_left(self._places, place))
        high = min(low + most, len(self._items))
        return cast("list[Item]", self._items[low:high]), self.end if high == len(self._items) else self._places[high]

    def before(self, place: int) -> Item | None:
        """The last item before a place, where it is still held."""
        low = bisect_left(self._places, place) - 1
        return self._items[low] if low >= self._begin else None

    def _forget(self) -> None:
        self._bytes -= self._sizes[self._begin]
        self._items[self._begin] = None
        self._begin += 1
        self.first = self._places[self._begin] if self._begin < len(self._places) else self.end
        if self._begin * 2 > len(self._items):
            for column in (self._places, self._items, self._sizes):
                del column[: self._begin]
            self._begin = 0
