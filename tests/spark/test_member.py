"""A member and the driver over their real channel, with clocks on the wall that do not agree."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from strandline.cli.fleet import summary
from strandline.clock import SystemClock
from strandline.kafka.partition import Partition
from strandline.replay.beginning import From
from strandline.replay.channel import Desk
from strandline.replay.messages import Reference
from strandline.replay.plan import Until
from strandline.replay.recipe import Recipe
from strandline.replay.roster import Roster
from strandline.spark import member
from strandline.spark.member import Errand, Membership
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from tests.replay.support import BEGIN, Said, capture, connection, get, serving
from tests.support import TIMEOUT

AHEAD = 3_000_000_000
SOON = 2_000_000_000
TOLD = re.compile(r"clocks: elsewhere is (?P<ahead>\d+\.\d) ms ahead of the driver \(to (?P<doubt>\d+\.\d) ms\)")


class ShiftedClock(SystemClock):
    """Of a host that was set wrong."""

    def wall(self) -> Nanos:
        return Nanos(super().wall() + AHEAD)


@pytest.fixture
def signals_kept() -> Iterator[None]:
    """A member takes the terminal's signal for the driver's."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("signals_kept")
def test_a_member_whose_clock_is_ahead_sends_by_the_drivers_and_the_summary_names_its_host(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "clock", ShiftedClock())
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    topic, clock, secret = "member-clock", SystemClock(), bytes(32)
    capture(kafka.address, topic, {"c": connection("c", [Said(n, get(f"/{n}")) for n in range(3)], close_at=3)})

    async def main() -> None:
        async with serving() as server:
            reference = Reference(source=BEGIN, wall=clock.wall() + SOON)
            due = time.monotonic_ns() + SOON
            roster = Roster(1, [0], reference)
            desk = Desk(roster, secret, clock)
            errand = Errand(
                recipe=Recipe(
                    target=f"http://127.0.0.1:{server.port}",
                    rest={
                        "kafka": {"bootstrap.servers": kafka.address, "group.id": topic},
                        "topic": topic,
                        "start": From.COMMITTED,
                        "until": Until.LIVE,
                    },
                ),
                ends={Partition(topic, 0): 4},
                host="127.0.0.1",
                port=await desk.open("127.0.0.1"),
                secret=secret,
                silent_after=timedelta(seconds=TIMEOUT),
                frozen_after=timedelta(seconds=TIMEOUT),
            )
            beats, pipe = os.pipe()
            try:
                await asyncio.wait_for(Membership(errand, 0, 0).run(pipe), 2 * TIMEOUT)
            finally:
                await desk.close()
                os.close(pipe)
                os.close(beats)
            assert server.paths == ["/0", "/1", "/2"]
            # By its own clock it would have sent them three seconds before; a clock may drift by a little.
            assert all(arrival.at > due - SOON // 4 for arrival in server.arrivals)
        [_, told] = summary(roster)
        found = TOLD.fullmatch(told)
        assert found is not None, told
        # Half a tenth of a millisecond more on either side: what is told is rounded.
        assert abs(float(found["ahead"]) - AHEAD / 1e6) <= float(found["doubt"]) + 0.1

    asyncio.run(main())
