"""When a member must prove that its partitions are its own."""

import asyncio

import pytest

from strandline.clock import AwakeClock, ManualClock
from strandline.replay.guard import Guard
from strandline.replay.leave import Leave
from strandline.units import Nanos

LIMIT = Nanos(1_000_000_000)


class Owner:
    """Never stalls itself, and is proven when it is told."""

    def __init__(self) -> None:
        self.proven = asyncio.Event()

    async def prove(self) -> bool:
        return await self.proven.wait()

    def stalled_for(self, _now: Nanos) -> Nanos:
        return Nanos(0)


@pytest.mark.parametrize(("stood", "is_given"), [(LIMIT, True), (LIMIT + 1, False)])
def test_a_request_after_a_stall_finds_no_leave_until_it_is_proven(stood: int, is_given: bool) -> None:
    async def main() -> None:
        clock, leave, owner = ManualClock(), Leave(), Owner()
        stalls: list[bool] = []

        def stalled() -> None:
            stalls.append(leave.is_given)
            guard.check()

        guard = Guard(owner, leave, LIMIT, stalled, clock)
        clock.advance(Nanos(stood))
        guard.check()
        guard.check()
        assert leave.is_given is is_given
        assert stalls == ([] if is_given else [False]), "told once, when the leave is withdrawn already"
        owner.proven.set()
        while not leave.is_given:
            await asyncio.sleep(0)
        guard.close()

    asyncio.run(main())


def test_its_clock_goes_on_while_the_machine_sleeps() -> None:
    async def main() -> None:
        guard = Guard(Owner(), Leave(), LIMIT, lambda: None)
        assert isinstance(guard._clock, AwakeClock)
        guard.close()

    asyncio.run(main())
