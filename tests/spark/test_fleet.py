"""A fleet on a standalone master with executors as processes of their own: whoever dies, freezes or is stopped.

All requests arrive at least once, in the order of their connection; nothing is committed without its result; all share
one reference, those that are started anew too; and the run comes to its end by itself.
"""

import asyncio
import json
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.cli.commands import app
from strandline.cli.fleet import progress, summary
from strandline.errors import OptionError, SparkEnded
from strandline.replay.messages import Figures, Report
from strandline.replay.recipe import Recipe
from strandline.replay.roster import Roster
from strandline.spark import fleet
from strandline.spark.places import Places, check_workers, local_slots
from strandline.stack import KafkaCluster
from strandline.stack.processes import OVERLOADED
from strandline.units import Nanos
from tests.ordered.support import create_topic
from tests.replay.members import assert_all_came_in_order, place, steady
from tests.replay.support import Held, Server, committed, serving
from tests.replay.test_metrics import LABELLED, fetch, samples
from tests.spark.cluster import Cluster, command, parent
from tests.support import TIMEOUT

PARTITIONS = 6
PATIENCE = 5 * TIMEOUT
"""Spark starts slowly on a machine that has much else to do."""


@pytest.fixture
def topic() -> str:
    return f"fleet-{secrets.token_hex(4)}"


class Driver:
    """`strandline replay` with members on Spark, run as a command in a process group of its own."""

    def __init__(self, kafka: KafkaCluster, topic: str, server: Server, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "driver.log"
        self._command = [
            *(sys.executable, "-m", "strandline", "replay", "--target", f"http://127.0.0.1:{server.port}"),
            *("--topic", topic, "--kafka", kafka.address, "--group", f"{topic}-group", "--until", "live"),
            *("--quiescence", "0.5", "--set", "session.timeout.ms=6000", "--set", "heartbeat.interval.ms=300"),
            *("--observe", "127.0.0.1:0"),
        ]

    async def start(self, *arguments: str) -> Self:
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, *arguments, stdout=log, stderr=log, start_new_session=True, cwd=self._directory
            )
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def ends(self) -> int:
        return await asyncio.wait_for(self.process.wait(), PATIENCE)

    async def metrics(self) -> LABELLED:
        """What Prometheus is told."""
        [address] = re.findall(r"status and metrics are at (\S+)", self.log)
        code, page = await asyncio.to_thread(fetch, f"{address}/metrics")
        assert code == 200, page
        return samples(page)

    @property
    def log(self) -> str:
        return self._log.read_text()


async def soon(condition: Callable[[], object], what: str, driver: Driver) -> None:
    """Wait for a condition for as long as the driver runs."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            assert driver.process.returncode is None, f"it has ended before: {what}\n{driver.log}"
            await asyncio.sleep(0.05)


def results(kafka: KafkaCluster, topic: str) -> list[dict[str, Any]]:
    """All that is in the topic of the results by now."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "test", "enable.auto.commit": False})
    try:
        places = [TopicPartition(f"{topic}-results", number, 0) for number in range(PARTITIONS)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=TIMEOUT)[1] for place in places}
        consumer.assign(places)
        found: list[dict[str, Any]] = []
        # Each up to its own end: while one is read, more may come to another.
        unread = {(number, end - 1) for number, end in ends.items() if end}
        while unread:
            for message in consumer.consume(500, 0.2):
                found.append(json.loads(message.value() or b""))
                unread.discard((message.partition(), message.offset()))
        return found
    finally:
        consumer.close()


def marks(kafka: KafkaCluster, topic: str) -> list[int]:
    return [max(0, mark) for mark in committed(kafka.address, topic, PARTITIONS)]


async def assert_what_is_committed_has_its_result(kafka: KafkaCluster, topic: str, last: int) -> list[int]:
    """`last` requests a connection, each in a record of its own, and a record with its close."""
    found = await asyncio.to_thread(marks, kafka, topic)
    told = {(result["partition"], result["offset"]) for result in await asyncio.to_thread(results, kafka, topic)}
    records = {(p, offset) for p, mark in enumerate(found) for offset in range(mark)}
    assert len(records - told) <= last, sorted(records - told)
    return found


async def serves_on(server: Server, driver: Driver, count: int = 40) -> None:
    """Some more requests come."""
    wanted = len(server.arrivals) + count
    await soon(lambda: len(server.arrivals) >= wanted, f"{count} more requests", driver)


@pytest.mark.timeout(10 * TIMEOUT)
def test_a_worker_an_executor_and_a_frozen_one_are_replaced_and_the_run_ends_by_itself(
    kafka: KafkaCluster, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    connections, requests = 18, 100
    total = connections * requests
    steady(kafka, topic, connections=connections, requests=requests, every=250, partitions=PARTITIONS)

    # However long it takes to strike: the run is not over while the target owes an answer.
    held = Held(f"/c0/{requests - 1}")

    async def main() -> None:
        async with serving(held) as server, Driver(kafka, topic, server, tmp_path) as driver:
            options = ("--workers", "3", "--frozen-after", "4", "--answer-timeout", "600")
            await driver.start(*options, *cluster.options)
            await soon(lambda: len(cluster.members()) == 3, "three members", driver)
            assert len(cluster.executors()) == 2
            await serves_on(server, driver)
            async with asyncio.timeout(PATIENCE):
                # Members report twice a second, and the last of them may not have reported yet.
                while (shown := await driver.metrics())["members", ""] < 3 or not shown["sent_total", ""]:
                    await asyncio.sleep(0.05)
            assert (shown["members", ""], shown["workers", ""], shown["restarts_total", ""]) == (3, 3, 0)
            seen = [[0] * PARTITIONS]
            for strike in (kill_a_member, kill_an_executor, freeze_a_member):
                gone = strike(cluster)
                await soon(lambda gone=gone: all(map(is_gone, gone)), "it is gone", driver)  # type: ignore[misc]
                seen.append(await assert_what_is_committed_has_its_result(kafka, topic, connections))
                await soon(lambda: len(cluster.members()) == 3, "three members again", driver)
            await soon(lambda: len({arrival.path for arrival in server.arrivals}) == total, "all arrive", driver)
            held.let_go()
            assert await driver.ends() == 0, driver.log
            seen.append(await assert_what_is_committed_has_its_result(kafka, topic, connections))
            assert not server.open
        assert_all_came_in_order(server.arrivals, connections, requests)
        for before, after in pairwise(seen):
            assert all(was <= now for was, now in zip(before, after, strict=True)), "a commit went back"
        assert sum(seen[-1]) == connections * (requests + 1)
        assert_one_reference(await asyncio.to_thread(results, kafka, topic))
        assert "members started anew" in driver.log

    asyncio.run(main())


async def assert_what_was_sent_has_its_result_and_is_committed(
    kafka: KafkaCluster, topic: str, server: Server, connections: int
) -> None:
    """Of members that have drained and ended by themselves."""
    sent = {arrival.mark for arrival in server.arrivals}
    told = {result["id"] for result in await asyncio.to_thread(results, kafka, topic)}
    assert sent == told, "what was sent has its result"
    await assert_what_is_committed_has_its_result(kafka, topic, connections)
    # All but what was done behind a request that was not begun any more.
    assert sum(await asyncio.to_thread(marks, kafka, topic)) >= len(sent) - connections


def kill_a_member(cluster: Cluster) -> set[int]:
    pid = min(cluster.members())
    os.kill(pid, signal.SIGKILL)
    return {pid}


def kill_an_executor(cluster: Cluster) -> set[int]:
    """Its members end too, in good order, a moment later: the next strike is for others."""
    pid = parent(parent(min(cluster.members())))
    assert pid in cluster.executors()
    its_own = {member for member in cluster.members() if parent(parent(member)) == pid}
    os.kill(pid, signal.SIGKILL)
    return {pid} | its_own


def freeze_a_member(cluster: Cluster) -> set[int]:
    pid = min(cluster.members())
    os.kill(pid, signal.SIGSTOP)
    return {pid}


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def children(pid: int) -> list[int]:
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and parent(int(entry.name)) == pid
    ]


def below(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    return [found for child in children(pid) for found in (child, *below(child))]


def assert_one_reference(told: list[dict[str, Any]]) -> None:
    """What lies between the time of the source and the time that is due is the same everywhere, in every life.

    Requests whose connection rests, as its partition has just come, are due together when that is over: these are few
    moments. By another reference they would be due at as many as there are requests.
    """
    offsets = [result["due_us"] - result["source_time_us"] for result in told]
    rested = {
        result["due_us"] // 50_000
        for result, offset in zip(told, offsets, strict=True)
        # To within what the two clocks of one machine drift apart.
        if offset - min(offsets) > 20_000
    }
    assert len(rested) <= 40, sorted(rested)


@pytest.mark.timeout(10 * TIMEOUT)
def test_ctrl_c_at_the_terminal_drains_and_commits_and_nothing_that_is_committed_repeats(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    connections, requests = 12, 60
    steady(kafka, topic, connections=connections, requests=requests, every=500, partitions=PARTITIONS)

    async def main() -> None:
        async with serving() as server:
            async with Driver(kafka, topic, server, tmp_path) as driver:
                await driver.start("--workers", "2")
                await serves_on(server, driver)
                # All processes that the terminal knows of, as the terminal does it.
                os.killpg(driver.process.pid, signal.SIGINT)
                assert await driver.ends() == 0, driver.log
                assert "ending in good order, within 40 s" in driver.log
                assert not server.open
                sent = len(server.arrivals)
                assert sent < connections * requests
                held = await assert_what_is_committed_has_its_result(kafka, topic, connections)
                told = await asyncio.to_thread(results, kafka, topic)
                assert len(told) == sent
                # By one member without Spark, which is soon up.
                await driver.start("--speedup", "max")
                assert await driver.ends() == 0, driver.log
            assert_all_came_in_order(server.arrivals, connections, requests)
            assert all(offset >= held[partition] for partition, offset in map(place, server.arrivals[sent:]))
            # At most what was done behind a request that was not begun any more.
            assert len(server.arrivals) <= connections * requests + connections
            assert sum(await asyncio.to_thread(marks, kafka, topic)) == connections * (requests + 1)

    asyncio.run(main())


def freeze_and_interrupt(driver: Driver, jvm: int) -> None:
    os.kill(jvm, signal.SIGSTOP)
    os.killpg(driver.process.pid, signal.SIGINT)


@pytest.mark.timeout(10 * TIMEOUT)
@pytest.mark.parametrize(
    ("strike", "line"),
    [
        (lambda _, jvm: os.kill(jvm, signal.SIGKILL), f"Spark's JVM has ended by itself, or was killed; {OVERLOADED}"),
        # It takes the 20 s that a JVM has before it counts as frozen.
        pytest.param(
            freeze_and_interrupt,
            f"Spark at local[1,100] made no progress for 20 s and was ended; {OVERLOADED}",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["killed", "frozen, and Ctrl-C"],
)
def test_a_fleet_whose_jvm_is_killed_or_frozen_ends_with_one_line_and_its_members_drain_and_commit(
    kafka: KafkaCluster, topic: str, tmp_path: Path, strike: Callable[[Driver, int], None], line: str
) -> None:
    connections, requests = 6, 200
    steady(kafka, topic, connections=connections, requests=requests, every=500, partitions=PARTITIONS)

    async def main() -> None:
        async with serving() as server, Driver(kafka, topic, server, tmp_path) as driver:
            await driver.start("--workers", "1")
            await serves_on(server, driver, 10)
            [jvm] = [pid for pid in children(driver.process.pid) if "org.apache.spark" in command(pid)]
            processes = [jvm, *below(jvm)]
            try:
                strike(driver, jvm)
                assert await driver.ends() == 1, driver.log
            finally:
                if not is_gone(jvm):
                    os.kill(jvm, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE):
                while not all(map(is_gone, processes)):
                    await asyncio.sleep(0.05)
            assert not server.open
            assert driver.log.splitlines()[-1] == f"strandline: {line}"
            assert "Traceback" not in driver.log
            assert "py4j" not in driver.log
            await assert_what_was_sent_has_its_result_and_is_committed(kafka, topic, server, connections)

    asyncio.run(main())


@pytest.mark.soak
@pytest.mark.timeout(10 * TIMEOUT)
def test_members_whose_driver_is_killed_drain_commit_and_end(
    kafka: KafkaCluster, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    connections, requests = 12, 200
    steady(kafka, topic, connections=connections, requests=requests, every=500, partitions=PARTITIONS)

    async def main() -> None:
        async with serving() as server, Driver(kafka, topic, server, tmp_path) as driver:
            await driver.start("--workers", "2", *cluster.options)
            await serves_on(server, driver)
            members = cluster.members()
            assert members
            driver.process.kill()
            async with asyncio.timeout(PATIENCE):
                while not all(map(is_gone, members)):
                    await asyncio.sleep(0.05)
            assert not server.open
            await assert_what_was_sent_has_its_result_and_is_committed(kafka, topic, server, connections)

    asyncio.run(main())


def test_more_workers_than_there_is_room_or_work_for_are_refused() -> None:
    assert check_workers(None, slots=8, partitions=6, master="local[8]") == 6
    assert check_workers(None, slots=2, partitions=6, master="local[2]") == 2
    assert check_workers(6, slots=6, partitions=6, master="local[6]") == 6
    with pytest.raises(OptionError, match=r"--workers 3: tasks that local\[2\] runs at a time: 2"):
        check_workers(3, slots=2, partitions=6, master="local[2]")
    with pytest.raises(OptionError, match="--workers 7: partitions of the topic: 6"):
        check_workers(7, slots=8, partitions=6, master="local[8]")


def test_what_cannot_be_is_told_in_one_line_before_spark_is_started(kafka: KafkaCluster, topic: str) -> None:
    create_topic(kafka.address, topic, 2)

    def tell(*arguments: str) -> str:
        place = ("--topic", topic, "--kafka", kafka.address, "--observe", "127.0.0.1:0")
        command = ["replay", "--target", "http://127.0.0.1:9", *place, *arguments]
        with pytest.raises(OptionError) as caught:
            app(command, exit_on_error=False, print_error=False, result_action="return_value")
        return str(caught.value)

    assert "'foo' is no master of Spark; it is local" in tell("--workers", "1", "--master", "foo")
    assert "tasks that local[1] runs at a time: 1" in tell("--workers", "2", "--master", "local[1]")
    assert "partitions of the topic: 2" in tell("--workers", "3")
    assert "--workers is to be at least 1" in tell("--workers", "0")
    assert "--frozen-after is to be above 0" in tell("--workers", "1", "--frozen-after", "0")
    assert "--spark takes name=value" in tell("--workers", "1", "--spark", "executor.memory=1g")
    assert "--spark is for a replay by a fleet" in tell("--spark", "spark.executor.memory=1g")


def test_a_fleet_that_sent_nothing_tells_no_lateness_and_one_member_is_one() -> None:
    roster = Roster(2, range(2))
    for attempt in (0, 1):
        roster.report(Report(task=0, attempt=attempt, host="h", pid=1, at=0), Nanos(0))
    assert summary(roster) == ["0 requests sent by 2 members; results: none; 1 member started anew"]
    sent = Report(task=0, attempt=1, host="h", pid=1, at=0, figures=Figures(sent=1))
    roster.report(sent, Nanos(0))
    assert summary(roster) == ["1 request sent by 2 members; results: none; 1 member started anew"]
    assert progress(roster).endswith("   0 records behind   0 mismatches")


def test_a_fleet_that_is_stopped_before_its_members_come_does_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_up = threading.Event()
    monkeypatch.setattr(fleet, "_run_job", lambda *_: given_up.wait(TIMEOUT) and [])
    roster = Roster(2, range(2))
    # Spark while it has no place for a task.
    places = Places("full", "local[1]", {})
    try:
        asyncio.run(lead_and_stop(roster, places))
    finally:
        given_up.set()
    assert summary(roster) == ["0 requests sent by 2 members; results: none"]


def test_a_fleet_whose_members_have_drained_gives_spark_a_limit_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = threading.Event()

    class Frozen(Places):
        def end_soon(self) -> None:
            limited.set()

    def run_job(*_: object) -> list[bytes]:
        assert limited.wait(TIMEOUT)
        raise SparkEnded("it stood still")

    monkeypatch.setattr(fleet, "_run_job", run_job)
    roster = Roster(1, range(2))
    roster.report(Report(task=0, attempt=0, host="h", pid=1, at=0, is_last=True), Nanos(0))
    with pytest.raises(SparkEnded, match="it stood still"):
        asyncio.run(lead_and_stop(roster, Frozen("frozen", "local[1]", {})))


async def lead_and_stop(roster: Roster, places: Places) -> None:
    kafka = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    recipe = Recipe(target="http://127.0.0.1:1", rest={"kafka": kafka, "topic": "t"})
    stopped = fleet.Fleet(fleet.FleetPlan(recipe=recipe))
    async with asyncio.timeout(TIMEOUT):
        stopped.stop()
        await stopped._lead(roster, places, cast("Any", None), lambda _: None)


@pytest.mark.parametrize(
    ("master", "slots"),
    [("local", 1), ("local[4]", 4), ("local[3,5]", 3), ("local[*]", os.cpu_count()), ("spark://h:7077", None)],
)
def test_the_slots_of_a_local_master_are_in_its_name(master: str, slots: int | None) -> None:
    assert local_slots(master) == slots
