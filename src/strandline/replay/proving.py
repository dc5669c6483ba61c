"""The proof that our partitions are still our own, asked for until it is given."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from strandline.units import Nanos

PROVE_AGAIN_AFTER = 0.5


class Owner(Protocol):
    """Who knows whether our partitions are ours."""

    def prove(self) -> Awaitable[bool]: ...
    def stalled_for(self, now: Nanos) -> Nanos: ...


async def until_proven(owner: Owner, proven: Callable[[], None]) -> None:
    """Ask until it is proven, and tell that."""
    # No end: a member that cannot show what is its own may not send, and the group tells it what it has lost.
    while not await owner.prove():
        await asyncio.sleep(PROVE_AGAIN_AFTER)
    proven()
