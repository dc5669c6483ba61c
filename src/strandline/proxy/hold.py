"""What the requests that are gathered may take of memory, all connections of a process together.

A request takes room for what has come of it, whatever size it says it has. While there is no room, only the one that
began first is read on, and all that have room are given less time to come whole.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from strandline.core.budget import Budget

MOST_BYTES: Final = 256 << 20
# Small ones need no room: nobody is to wait for who sends large ones.
SMALL: Final = 16 << 10
# How long a request has to come whole, and how long while others wait for the room that it has.
REQUEST_S: Final = 60.0
WANTED_S: Final = 10.0


class Hold:
    """Lets requests be read on while there is room, and calls those who found none when there is."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._budget: Budget[object] = Budget(max_bytes=most_bytes)
        self._waiting: dict[Callable[[], None], None] = {}

    def lets(self, item: object, size: int, again: Callable[[], None]) -> bool:
        """Whether a request of this size is read on; if not, `again` is called when some room has become free."""
        if size <= SMALL or self._budget.may_grow(item):
            return True
        self._waiting[again] = None
        return False

    def take(self, item: object, size: int, came: int) -> None:
        """So many bytes of a request of this size have come."""
        if size > SMALL:
            self._budget.grow(item, came)

    def waits(self, again: Callable[[], None]) -> bool:
        """Whether this one is to be called."""
        return again in self._waiting

    def within(self, size: int) -> float:
        """How many seconds a request of this size has to come whole, those not counted in which it waits for room."""
        return WANTED_S if self._waiting and size > SMALL else REQUEST_S

    def release(self, item: object) -> None:
        """A request is answered, or given up."""
        if self._budget.release(item) and self._waiting:
            # Not at once: others may be about to be given up too, since somebody waits.
            asyncio.get_running_loop().call_soon(self._call)

    def forget(self, again: Callable[[], None]) -> None:
        """This one waits no longer."""
        self._waiting.pop(again, None)

    def _call(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for again in waiting:
            again()
