"""Captured traffic on a real broker, replayed onto a real target."""

import asyncio
import time
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from msgspec import convert

from strandline.cli.replay import by_our_clock, parse_reference
from strandline.replay.changes import TransformConfig
from strandline.replay.transforms import Transform
from strandline.stack.kafka import KafkaCluster
from tests.replay.support import (
    BEGIN,
    Said,
    capture,
    committed,
    connection,
    due,
    get,
    plan,
    post,
    replay,
    results,
    serving,
    until,
)


def test_requests_arrive_in_order_on_time_and_byte_for_byte(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    first = [Said(0, get("/a1")), Said(200, post("/a2", b"hello")), Said(400, get("/a3"))]
    second = [Said(100, get("/b1")), Said(300, get("/b2"))]
    capture(
        kafka.address, topic, {"a": connection("a", first, close_at=500), "b": connection("b", second, close_at=600)}
    )

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server, results=tmp_path / "results.jsonl"))
            await until(lambda: not server.open, "no connection is left")
            # Each by itself: what is late by more than lies between two of them may overtake the other connection's.
            came = {arrival.path: arrival for arrival in server.arrivals}
            for name, said, close_at in (("/a", first, 500), ("/b", second, 600)):
                paths = [f"{name}{number}" for number in range(1, len(said) + 1)]
                assert [path for path in server.paths if path.startswith(name)] == paths
                assert all(came[path].at >= due(run, exchange.at) for path, exchange in zip(paths, said, strict=True))
                (used,) = {came[path].connection for path in paths}
                assert server.closed[used] >= due(run, close_at)
            assert (len(server.arrivals), server.count) == (5, 2)
            sent = came["/a2"].content
            assert (
                sent
                == (
                    f"POST /a2 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 5\r\n"
                    "X-Strandline-Request: 0-1.0\r\n\r\nhello"
                ).encode()
            )
            assert run.engine.counters.sent == 5

    asyncio.run(main())
    found = results(tmp_path / "results.jsonl")
    assert [result["verdict"] for result in found] == ["match"] * 5
    assert committed(kafka.address, topic) == [7]


def test_a_reference_that_is_given_says_when_all_is_due(kafka: KafkaCluster, topic: str) -> None:
    said = [Said(0, get("/1")), Said(300, get("/2"))]
    capture(kafka.address, topic, {"c": connection("c", said)})

    async def main() -> None:
        async with serving() as server:
            now, begin = time.time(), BEGIN / 1e9
            # What was 0.75 s before the first request is now, at half the speed.
            source, wall = (datetime.fromtimestamp(at, UTC).isoformat() for at in (begin - 0.75, now))
            speed = Fraction(1, 2)
            reference = by_our_clock(parse_reference(f"{source}@{wall}"), speed)
            run = await replay(plan(kafka.address, topic, server, reference=reference, speed=speed))
            to_wall = time.time_ns() - time.monotonic_ns()
            for arrival, expected in zip(server.arrivals, [now + 1.5, now + 2.1], strict=True):
                # The two clocks were not read at the same moment.
                assert (arrival.at + to_wall) / 1e9 > expected - 0.5
            for ms, expected in ((0, now + 1.5), (300, now + 2.1)):
                assert abs((due(run, ms) + to_wall) / 1e9 - expected) < 0.5

    asyncio.run(main())


def test_tuples_are_written_beside_the_results(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, post("/1", b"hello")), Said(1, get("/2"))])})

    async def main() -> None:
        async with serving() as server:
            files = {"results": tmp_path / "results.jsonl", "tuples": tmp_path / "tuples.jsonl"}
            await replay(plan(kafka.address, topic, server, **files))

    asyncio.run(main())
    first, second = results(tmp_path / "tuples.jsonl")
    assert (first["sourceRequest"]["Method"], first["sourceRequest"]["Request-URI"]) == ("POST", "/1")
    assert (first["sourceResponse"]["Status-Code"], first["targetResponses"][0]["Status-Code"]) == (200, 200)
    assert second["targetRequest"]["Request-URI"] == "/2"
    assert [result["id"] for result in results(tmp_path / "results.jsonl")] == ["0-0.0", "0-1.0"]


def test_a_request_whose_transform_raises_fails_alone_and_the_frontier_moves(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raising.py").write_text(
        "def fail(request):\n    if request.target == '/bad':\n        raise KeyError('no such thing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = convert({"transforms": [{"python": "raising:fail"}]}, TransformConfig)
    capture(
        kafka.address,
        topic,
        {"c": connection("c", [Said(n, get(path)) for n, path in enumerate(["/1", "/bad", "/3"])])},
    )

    async def main() -> None:
        async with serving() as server:
            transform = Transform(f"127.0.0.1:{server.port}", config)
            run = await replay(plan(kafka.address, topic, server, transform=transform, results=tmp_path / "results"))
            assert server.paths == ["/1", "/3"]
            assert run.engine.counters.failed == 1

    asyncio.run(main())
    good, bad, after = results(tmp_path / "results")
    assert (good["error"], after["error"]) == (None, None)
    assert "no such thing" in bad["error"]
    assert bad["attempts"] == []
    assert committed(kafka.address, topic) == [3]
