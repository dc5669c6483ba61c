"""Members of one group that come, go, die and freeze while they replay."""

import asyncio
import signal
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from strandline.replay.beginning import From
from strandline.replay.leave import Reason
from strandline.replay.limits import Limits
from strandline.replay.plan import Until
from strandline.replay.session import Phase
from strandline.stack.kafka import KafkaCluster
from tests.replay.members import (
    Member,
    assert_all_came_in_order,
    assert_never_served_by_two_at_once,
    place,
    steady,
)
from tests.replay.support import (
    Held,
    Said,
    Server,
    capture,
    committed,
    connection,
    get,
    plan,
    replay,
    running,
    serving,
    until,
)
from tests.support import frozen

CONNECTIONS, REQUESTS, PARTITIONS = 16, 400, 4
EVERY = 300
"""Milliseconds: two minutes of traffic, more than members need to come and go on a slow machine."""


class Marks:
    """What the group had committed from time to time."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self._kafka, self._topic = kafka, topic
        self.seen: list[list[int]] = []

    async def look(self) -> list[int]:
        found = await asyncio.to_thread(committed, self._kafka.address, self._topic, PARTITIONS)
        self.seen.append([max(0, mark) for mark in found])
        return self.seen[-1]

    def assert_never_back(self) -> None:
        for before, after in pairwise(self.seen):
            assert all(was <= now for was, now in zip(before, after, strict=True)), self.seen


async def all_serve(server: Server, *members: Member) -> None:
    """Wait until each of these members has sent something from now on."""
    since = len(server.arrivals)
    await until(
        lambda: (
            {member.name for member in members} <= {arrival.header("X-Member") for arrival in server.arrivals[since:]}
        ),
        f"all of {', '.join(member.name for member in members)} serve",
    )


async def finish(kafka: KafkaCluster, topic: str, server: Server, tmp_path: Path) -> None:
    """What is left, as fast as it can be."""
    last = await Member(kafka, topic, server, "last", tmp_path).start("--speedup", "max")
    assert await last.end() == 0, last.log
    await until(lambda: not server.open, "no connection is left")


def test_members_that_join_and_leave_in_good_order_repeat_nothing(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    steady(kafka, topic, connections=CONNECTIONS, requests=REQUESTS, every=EVERY, partitions=PARTITIONS)

    async def main() -> None:
        async with serving() as server:
            marks = Marks(kafka, topic)
            one = await Member(kafka, topic, server, "one", tmp_path).start()
            await all_serve(server, one)
            two = await Member(kafka, topic, server, "two", tmp_path).start()
            await all_serve(server, one, two)
            await marks.look()
            assert await two.end(signal.SIGTERM) == 0, two.log
            await marks.look()
            await all_serve(server, one)
            assert await one.end(signal.SIGTERM) == 0, one.log
            await until(lambda: not server.open, "no connection is left")
            await finish(kafka, topic, server, tmp_path)
            await marks.look()
        assert_all_came_in_order(server.arrivals, CONNECTIONS, REQUESTS)
        repeated = [mark for mark, times in Counter(arrival.mark for arrival in server.arrivals).items() if times > 1]
        assert not repeated, one.log + two.log
        marks.assert_never_back()
        assert sum(marks.seen[-1]) == CONNECTIONS * (REQUESTS + 1)
        assert_never_served_by_two_at_once(server.arrivals)

    asyncio.run(main())


def test_a_member_told_to_begin_at_the_oldest_record_does_so_only_while_nobody_is_at_work(
    kafka: KafkaCluster, topic: str
) -> None:
    steady(kafka, topic, connections=4, requests=5, every=10, partitions=1)

    async def main() -> None:
        async with serving() as server:
            await replay(plan(kafka.address, topic, server))
            assert len(server.arrivals) == 20
            await replay(plan(kafka.address, topic, server, start=From.EARLIEST))
            assert len(server.arrivals) == 40
            async with running(plan(kafka.address, topic, server, until=Until.NEVER)) as first:
                await until(lambda: first.is_running and first.gate.partitions, "the first is a member")
                async with running(
                    plan(kafka.address, topic, server, until=Until.NEVER, start=From.EARLIEST)
                ) as second:
                    await until(lambda: second.is_running, "the second has begun")
                    first.stop()
                    await until(lambda: second.gate.partitions, "the second has the partition")
                    await until(lambda: second.read_to, "it is at the end")
                    second.stop()
            assert len(server.arrivals) == 40

    asyncio.run(main())


def test_a_request_that_waited_for_a_slot_or_a_connection_asks_for_leave_before_it_is_sent(
    kafka: KafkaCluster, topic: str
) -> None:
    capture(kafka.address, topic, {name: connection(name, [Said(0, get(f"/{name}"))]) for name in "abc"})
    held = Held("/a", "/b", "/c")

    async def main() -> None:
        async with (
            serving(held) as server,
            running(plan(kafka.address, topic, server, limits=Limits(concurrency=1))) as run,
        ):
            await until(lambda: server.arrivals, "the first arrives")
            await until(lambda: run.engine.counters.requests == 3, "the others wait for a slot")
            run.engine.leave.withdraw(Reason.UNPROVEN)
            held.let_go()
            await until(lambda: run.engine.counters.answered == 1, "the first is answered")
            parked = [Phase.PARKED] * 2
            await until(
                lambda: [each.phase for each in run.engine.sessions if each.phase is not Phase.IDLE] == parked,
                "the others find no leave",
            )
            assert run.engine.counters.sent == len(server.arrivals) == 1
            run.engine.leave.restore(Reason.UNPROVEN)
        assert len(server.arrivals) == 3

    asyncio.run(main())


def test_a_member_that_is_killed_and_one_that_is_frozen_until_it_is_fenced_lose_nothing_and_disturb_nobody(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    steady(kafka, topic, connections=CONNECTIONS, requests=REQUESTS, every=EVERY, partitions=PARTITIONS)

    async def main() -> None:
        async with serving() as server:
            marks = Marks(kafka, topic)
            one, two, three = members = [
                await Member(kafka, topic, server, name, tmp_path).start() for name in ("one", "two", "three")
            ]
            await all_serve(server, *members)
            await two.end(signal.SIGKILL)
            three.send(signal.SIGSTOP)
            frozen = len(server.arrivals)
            held = await marks.look()
            looked = len(server.arrivals)
            # What the frozen one had is served by the one that is left, once the group has put it out.
            await until(lambda: has_all_partitions(server, frozen, "one"), "one serves all")
            await marks.look()
            three.send(signal.SIGCONT)
            thawed = len(server.arrivals)
            await all_serve(server, one, three)
            assert "nothing is sent until our partitions are proven ours" in three.log
            assert await one.end(signal.SIGTERM) == 0, one.log
            assert await three.end(signal.SIGTERM) == 0, three.log
            await until(lambda: not server.open, "no connection is left")
            await finish(kafka, topic, server, tmp_path)
            final = await marks.look()
        assert_all_came_in_order(server.arrivals, CONNECTIONS, REQUESTS)
        marks.assert_never_back()
        assert sum(final) == CONNECTIONS * (REQUESTS + 1)
        # Nothing that was committed came again; nothing repeats more often than members were lost.
        assert all(offset >= held[partition] for partition, offset in map(place, server.arrivals[looked:]))
        counts = Counter(arrival.mark for arrival in server.arrivals)
        assert max(counts.values()) <= 3
        # The one that was thawed sends nothing again that another has sent meanwhile.
        sent = {arrival.mark for arrival in server.arrivals[frozen:thawed]}
        again = [arrival for arrival in server.arrivals[thawed:] if arrival.header("X-Member") == "three"]
        assert not sent & {arrival.mark for arrival in again}, three.log
        assert_never_served_by_two_at_once(server.arrivals)

    asyncio.run(main())


def test_a_member_that_is_cut_off_from_kafka_sends_nothing_more_once_its_session_is_over(
    kafka: KafkaCluster, topic: str
) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/hold")), Said(1, get("/due"))])})
    settings = {"bootstrap.servers": kafka.address, "group.id": topic, "session.timeout.ms": 6000}
    held = Held("/hold")

    async def main() -> None:
        async with serving(held) as server:
            chosen = plan(kafka.address, topic, server, kafka=settings, until=Until.NEVER, drain=timedelta(seconds=1))
            async with running(chosen) as run:
                await until(lambda: server.arrivals, "the first arrives")
                with frozen(kafka):
                    await until(lambda: not run.engine.sessions, "the partition is lost")
                    held.let_go()
                    await until(lambda: not server.open, "its connection is broken off")
                    assert server.paths == ["/hold"]
                run.stop()

    asyncio.run(main())


def has_all_partitions(server: Server, since: int, name: str) -> bool:
    mine = [arrival for arrival in server.arrivals[since:] if arrival.header("X-Member") == name]
    return {place(arrival)[0] for arrival in mine} == {place(arrival)[0] for arrival in server.arrivals}
