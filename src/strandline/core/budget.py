"""A bound on the bytes of what is in flight, counted as they come.

The rule: once the bound is reached only the eldest goes on. So whoever says that much will come and sends nothing takes
nothing; those that are half there never wait for each other without end; and all but the eldest together are above the
bound by no more than the pieces that came when it was reached.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Budget(Generic[Item]):
    """Counts what has come of each item."""

    __slots__ = ("_bytes", "_sizes", "max_bytes")

    def __init__(self, *, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError("a budget holds at least one byte")
        self.max_bytes = max_bytes
        self._sizes: dict[Item, int] = {}
        """In the order in which they began."""
        self._bytes = 0

    def may_grow(self, item: Item) -> bool:
        """Whether more of an item is to be taken, or the first of it."""
        return self._bytes < self.max_bytes or next(iter(self._sizes)) == item

    def grow(self, item: Item, size: int) -> None:
        """So many bytes of an item have come."""
        if size < 0:
            raise ValueError(f"a size of {size} bytes")
        self._sizes[item] = self._sizes.get(item, 0) + size
        self._bytes += size

    def release(self, item: Item) -> bool:
        """Let an item out; False for one that is not in flight, as one that was released before."""
        if item not in self._sizes:
            return False
        self._bytes -= self._sizes.pop(item)
        return True

    @property
    def bytes(self) -> int:
        """How many bytes are in flight."""
        return self._bytes
