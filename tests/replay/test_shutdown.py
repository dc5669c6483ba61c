"""How a replay comes to its end, and with which exit code."""

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.replay.plan import Until
from strandline.stack.kafka import KafkaCluster
from tests.ordered.support import create_topic
from tests.replay.members import Member, steady
from tests.replay.support import (
    Held,
    Peer,
    Said,
    answering,
    capture,
    committed,
    connection,
    get,
    plan,
    results,
    running,
    serving,
    until,
    write,
)


def test_a_signal_lets_what_is_on_its_way_end_and_commits_it(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    said = [Said(0, get("/1")), Said(60_000, get("/2"))]
    capture(kafka.address, topic, {"c": connection("c", said), "d": connection("d", [Said(0, get("/hold"))])})
    held = Held("/hold")

    async def main() -> None:
        async with serving(held) as server:
            one = await Member(kafka, topic, server, "one", tmp_path).start()
            await until(lambda: len(server.arrivals) == 2, "two arrive")
            one.send(signal.SIGTERM)
            on_hold = next(arrival.connection for arrival in server.arrivals if arrival.path == "/hold")
            await until(lambda: server.open == {on_hold}, "the other connection is closed")
            held.let_go()
            assert await one.end() == 0, one.log
            await until(lambda: not server.open, "no connection is left")
            assert sorted(server.paths) == ["/1", "/hold"]
            assert "2 of 3 requests sent" in one.log
            assert "/0@1 was not done in time; what was sent from there on is sent again" in one.log

    asyncio.run(main())
    # The second request was not sent, and holds the frontier.
    assert committed(kafka.address, topic) == [1]


def test_what_does_not_end_in_time_is_broken_off_and_not_committed(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/hold"))])})

    async def main() -> None:
        async with serving(Held("/hold")) as server:
            one = await Member(kafka, topic, server, "one", tmp_path).start("--drain", "0.3")
            await until(lambda: server.arrivals, "it arrives")
            assert await one.end(signal.SIGTERM) == 0, one.log
            await until(lambda: not server.open, "its connection is gone")

    asyncio.run(main())
    assert committed(kafka.address, topic)[0] <= 0


def test_a_second_signal_ends_it_at_once(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    said = {"c": [Said(0, get("/hold"))], "d": [Said(0, get("/idle"))]}
    capture(kafka.address, topic, {name: connection(name, requests) for name, requests in said.items()})

    async def main() -> None:
        async with serving(Held("/hold")) as server:
            one = await Member(kafka, topic, server, "one", tmp_path).start("--drain", "600")
            await until(lambda: len(server.arrivals) == 2, "both arrive")
            one.send(signal.SIGINT)
            # A second one before that would be one with the first.
            await until(lambda: len(server.open) == 1, "the idle connection is closed, so it has heard")
            assert await one.end(signal.SIGINT) == 1
            assert "interrupted" in one.log

    asyncio.run(main())


def test_a_sent_request_whose_next_attempt_is_awaited_is_told_as_it_is_and_does_not_repeat(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    steady(kafka, topic, connections=1, requests=1, every=60_000, partitions=1)

    async def busy(peer: Peer, _request: bytes) -> None:
        peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        async with serving(busy) as server:
            one = await Member(kafka, topic, server, "one", tmp_path).start()
            # Or the fourth, on a machine that keeps this process waiting.
            await until(lambda: len(server.arrivals) >= 3, "the third attempt is made")
            assert await one.end(signal.SIGTERM) == 0, one.log
            assert "1 status differs" in one.log

    asyncio.run(main())
    assert committed(kafka.address, topic)[0] >= 1


def test_a_sent_request_that_waits_for_the_source_is_told_as_it_is_and_does_not_repeat(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    """Whether to send again depends on an answer of the source that has not been captured yet."""
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"), None)])})
    busy = answering(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    async def main() -> None:
        path = tmp_path / "results.jsonl"
        async with (
            serving(busy) as server,
            running(plan(kafka.address, topic, server, until=Until.NEVER, results=path)) as run,
        ):
            await until(lambda: run.is_running and run.engine.is_waiting_for_source, "it waits for the source")
            run.stop()
        assert server.paths == ["/1"]

    asyncio.run(main())
    assert [result["verdict"] for result in results(tmp_path / "results.jsonl")] == ["no_source"]
    assert committed(kafka.address, topic) == [1]


def test_exit_codes_tell_the_cause(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving() as server:
            wrong = await Member(kafka, topic, server, "one", tmp_path).start("--lookahead", "1")
            assert await wrong.end() == 2
            missing = await Member(kafka, f"{topic}-missing", server, "one", tmp_path).start()
            assert await missing.end() == 1
            assert f"{topic}-missing" in missing.log

    asyncio.run(main())


def test_a_partition_that_is_wanted_back_while_the_replay_ends_is_handed_over(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections would else be served by two, for as long as the drain takes."""
    monkeypatch.setattr("strandline.replay.replay.HAND_OVER", timedelta(seconds=0.3))
    create_topic(kafka.address, topic, 2)
    for number, name in enumerate("ab"):
        write(kafka.address, topic, [(name, r) for r in connection(name, [Said(0, get(f"/{name}"))])], number)
    held = Held("/a", "/b")
    quick = {"bootstrap.servers": kafka.address, "group.id": topic, "heartbeat.interval.ms": 300}

    async def main() -> None:
        async with serving(held) as server:
            chosen = plan(kafka.address, topic, server, kafka=quick, until=Until.NEVER, drain=timedelta(seconds=100))
            async with running(chosen) as first:
                await until(lambda: len(server.arrivals) == 2, "both are on their way")
                first.stop()
                async with running(chosen) as second:
                    await until(lambda: second.is_running and second.gate.partitions, "another has one of them")
                    (gone,) = second.gate.partitions
                    kept = [session.partition for session in first.engine.sessions]
                    assert kept == [1 - gone.number], "and the other may end"
                    held.let_go()
                    await until(lambda: len(server.arrivals) == 3, "what was given up is sent again")
                    second.stop()

    asyncio.run(main())
