"""Work in a thread that keeps nothing of it.

A thread of a pool has what it was given and what it answered for a while after the answer is there: with megabytes in
each, that is memory nobody counts.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """What the work gives, once nothing but that is left of it."""
    given, found = [work], list[T]()
    del work
    await asyncio.to_thread(lambda: found.append(given.pop()()))
    return found.pop()
