"""Captured traffic on a real broker, replayed onto a real target."""

import asyncio
from pathlib import Path

from strandline.stack.kafka import KafkaCluster
from tests.replay.support import (
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
            assert server.paths == ["/a1", "/b1", "/a2", "/b2", "/a3"]
            assert [arrival.connection for arrival in server.arrivals] == [1, 2, 1, 2, 1]
            for arrival, at in zip(server.arrivals, [0, 100, 200, 300, 400], strict=True):
                assert arrival.at >= due(run, at)
            assert server.closed[1] >= due(run, 500)
            assert server.closed[2] >= due(run, 600)
            sent = server.arrivals[2].content
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
