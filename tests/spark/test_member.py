"""A member and the driver over their real channel, with clocks on the wall that do not agree."""

import asyncio
import json
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
from strandline.replay.limits import Limits
from strandline.replay.messages import Order, Reference
from strandline.replay.plan import Until
from strandline.replay.recipe import Recipe
from strandline.replay.roster import Roster
from strandline.spark import member
from strandline.spark.member import Errand, Membership
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from tests.replay.support import BEGIN, Held, Said, Server, capture, committed, connection, get, serving, until
from tests.support import TIMEOUT, read_records

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


def sent(
    kafka: KafkaCluster,
    topic: str,
    server: Server,
    port: int,
    secret: bytes,
    *,
    ends: int,
    silent_after: timedelta = timedelta(seconds=TIMEOUT),
    **rest: object,
) -> Errand:
    """What the driver at a port gives to a member that has a topic of one partition."""
    settings = {"bootstrap.servers": kafka.address, "group.id": topic}
    given = {"kafka": settings, "topic": topic, "start": From.COMMITTED, "until": Until.LIVE, **rest}
    return Errand(
        recipe=Recipe(target=f"http://127.0.0.1:{server.port}", rest=given),
        ends={Partition(topic, 0): ends},
        host="127.0.0.1",
        port=port,
        secret=secret,
        silent_after=silent_after,
        frozen_after=timedelta(seconds=TIMEOUT),
    )


@pytest.mark.usefixtures("signals_kept")
def test_a_member_whose_driver_is_gone_drains_commits_and_ends(kafka: KafkaCluster) -> None:
    topic, clock, secret, tomorrow = "member-alone", SystemClock(), bytes(32), 86_400_000
    said = [Said(0, get("/0")), Said(1, get("/1")), Said(tomorrow, get("/2"))]
    capture(kafka.address, topic, {"c": connection("c", said, close_at=tomorrow)})
    held = Held("/1")

    async def main() -> None:
        async with serving(held) as server:
            roster = Roster(1, [0], Reference(source=BEGIN, wall=clock.wall()))
            desk = Desk(roster, secret, clock)
            port, soon = await desk.open("127.0.0.1"), timedelta(seconds=1)
            # Nothing but the driver's silence ends it: it has a request that is due tomorrow.
            rest = {"lookahead": timedelta(days=2), "limits": Limits(quiescence=timedelta(0))}
            errand = sent(kafka, topic, server, port, secret, ends=4, silent_after=soon, **rest)
            beats, pipe = os.pipe()
            membership = Membership(errand, 0, 0)
            running = asyncio.ensure_future(membership.run(pipe))
            try:
                await until(lambda: server.paths == ["/0", "/1"], "one is answered, one is on its way")
                await desk.close()
                await until(lambda: membership._order is Order.DRAIN, "it drains")
                held.let_go()
                report = await asyncio.wait_for(running, TIMEOUT)
            finally:
                running.cancel()
                os.close(pipe)
                os.close(beats)
            assert not server.open
            assert server.paths == ["/0", "/1"]
            assert report.failure is None

    asyncio.run(main())
    assert committed(kafka.address, topic, group=topic) == [2]
    told = [json.loads(record)["id"] for record in read_records(kafka.address, f"{topic}-results", 2)]
    assert told == ["0-0.0", "0-1.0"], "what was sent has its result"


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
            errand = sent(kafka, topic, server, await desk.open("127.0.0.1"), secret, ends=4)
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
