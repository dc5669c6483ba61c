"""What the requests that are gathered may take of memory, all connections of a process together.

A request is let in whole, by the size that it says it has, so that those which are half there never wait for each
other. One that says more than comes of it keeps its place until its time is over.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.core.budget import Budget

MOST_BYTES: Final = 256 << 20
# Small ones need no room: nobody is to wait for who sends large ones.
SMALL: Final = 16 << 10
ANY_NUMBER: Final = 1 << 31


class Hold:
    """Lets requests in while there is room, and calls those who found none when there is."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._budget: Budget[object] = Budget(max_items=ANY_NUMBER, max_bytes=most_bytes)
        self._waiting: dict[Callable[[], None], None] = {}

    def admit(self, item: object, size: int, again: Callable[[], None]) -> bool:
        """Let a request in; where there is no room, False, and `again` is called when some has become free."""
        if size <= SMALL or self._budget.admit(item, size):
            return True
        self._waiting[again] = None
        return False

    def release(self, item: object) -> None:
        """A request is answered, or given up."""
        self._budget.release(item)
        waiting, self._waiting = self._waiting, {}
        for again in waiting:
            asyncio.get_running_loop().call_soon(again)
