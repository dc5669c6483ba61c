"""An engine stopped in good order, for some partitions or for all, and its results made safe."""

import asyncio
import logging
from collections.abc import Collection
from datetime import timedelta

from strandline.replay.engine import Engine
from strandline.replay.output import Output
from strandline.replay.session import Phase, Session
from strandline.units import Nanos, nanos

LOOK_EVERY = 0.005

log = logging.getLogger(__name__)


async def stop(engine: Engine, partitions: Collection[int], within: timedelta) -> None:
    """Begin nothing more for these partitions but what lies in the log before a request that was sent.

    That, and what is on its way, may end within the time.
    """
    concerned = _of(engine, partitions)
    by = Nanos(engine.clock.monotonic() + nanos(within))
    # Without any time it would be broken off as soon as it is begun.
    through = {partition: engine.sent_through(partition) if within else -1 for partition in partitions}
    for session in concerned:
        session.stop(through[session.partition], by)
    try:
        async with asyncio.timeout(within.total_seconds()):
            while any(session.phase is not Phase.CLOSED for session in concerned):
                engine.emptied.clear()
                await engine.emptied.wait()
    except TimeoutError:
        for session in concerned:
            session.abort()


def break_off(engine: Engine, partitions: Collection[int]) -> None:
    """These partitions are another member's: nothing of them is sent any more, and no result told of what was."""
    for session in _of(engine, partitions):
        session.abort()


def _of(engine: Engine, partitions: Collection[int]) -> list[Session]:
    return [session for session in engine.sessions if session.partition in partitions]


async def settle(output: Output, partitions: Collection[int], within: timedelta) -> None:
    """Wait until every result about these partitions is safe, or none will be any more, or the time is out."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            while output.unsafe_of(partitions) and not output.has_lost:
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        unsafe = output.unsafe_of(partitions)
        log.warning("%d results are not safe; what they are about will be replayed again", unsafe)
