"""A bounded set of what is in flight, by count and by bytes.

The rule: the set is never above either bound, but for one item that is alone. An item larger than the whole budget
would otherwise never be let in, and the log would stop at it for ever.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class Budget(Generic[Item]):
    """Lets items in while there is room."""

    __slots__ = ("_bytes", "_sizes", "max_bytes", "max_items")

    def __init__(self, *, max_items: int, max_bytes: int) -> None:
        if max_items < 1 or max_bytes < 1:
            raise ValueError("a budget holds at least one item and one byte")
        self.max_items = max_items
        self.max_bytes = max_bytes
        self._sizes: dict[Item, int] = {}
        self._bytes = 0

    def admit(self, item: Item, size: int) -> bool:
        """Let an item in if there is room for it; False, and nothing changed, if there is not."""
        if item in self._sizes:
            raise ValueError(f"{item!r} is in flight already")
        if size < 0:
            raise ValueError(f"a size of {size} bytes")
        if self._sizes and (len(self._sizes) >= self.max_items or self._bytes + size > self.max_bytes):
            return False
        self._sizes[item] = size
        self._bytes += size
        return True

    def release(self, item: Item) -> None:
        """Let an item out. One that is not in flight is ignored: it was released before."""
        self._bytes -= self._sizes.pop(item, 0)

    @property
    def items(self) -> int:
        """How many items are in flight."""
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """How many bytes are in flight."""
        return self._bytes
