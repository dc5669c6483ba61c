"""A member that was frozen or starved sends nothing more until it has shown that its partitions are still its own.

While this process stood still, the group may have given its partitions to another member, which sends the same
requests. Every request asks here first, so the first that would go out after a thaw finds that no beat came for long.
"""

import asyncio
import logging
from collections.abc import Callable

from strandline.clock import AwakeClock, Clock
from strandline.replay.leave import Leave, Reason
from strandline.replay.proving import Owner, until_proven
from strandline.units import Nanos

BEAT = 0.1
BRIEF = 1_000_000
"""For so many nanoseconds a good answer stands, since at full speed each request would ask the member's thread anew."""

log = logging.getLogger(__name__)


class Guard:
    """Withdraws the leave to send after a stall, and restores it with the proof.

    Its clock goes on while the machine is suspended, as that of the group does.
    """

    def __init__(
        self, owner: Owner, leave: Leave, limit: Nanos, stalled: Callable[[], None], clock: Clock | None = None
    ) -> None:
        self._owner = owner
        self._leave = leave
        self._clock = clock = clock or AwakeClock()
        self._limit = limit
        self._stalled = stalled
        self._last = self._checked = clock.monotonic()
        self._proving: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(BEAT, self._beat)
        self.stalls = 0

    def check(self) -> None:
        """Withdraw the leave if we stood still for too long."""
        now, limit = self._clock.monotonic(), self._limit
        if now - self._checked < BRIEF:
            return
        if now - self._last <= limit and self._owner.stalled_for(now) <= limit:
            self._checked = now
            return
        if self._proving is None:
            stalled = max(now - self._last, self._owner.stalled_for(now))
            self.stalls += 1
            log.warning("stood still for %.1f s: nothing is sent until our partitions are proven ours", stalled / 1e9)
            self._leave.withdraw(Reason.UNPROVEN)
            self._proving = self._loop.create_task(until_proven(self._owner, self._proven))
            # Last: what is broken off lets others ask here.
            self._stalled()

    def _beat(self) -> None:
        self.check()
        self._last = self._clock.monotonic()
        self._timer = self._loop.call_later(BEAT, self._beat)

    def _proven(self) -> None:
        log.warning("our partitions are proven ours: sending goes on")
        self._proving = None
        self._leave.restore(Reason.UNPROVEN)

    def close(self) -> None:
        """Watch no more."""
        self._timer.cancel()
        if self._proving is not None:
            self._proving.cancel()
