"""Requests one after the other, in the pieces in which they came, and connections closed when the source's were."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.replay.limits import Limits
from strandline.stack.kafka import KafkaCluster
from strandline.units import Nanos
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficObservation, TrafficStream
from tests.replay.support import (
    BEGIN,
    MS,
    OK,
    Held,
    Said,
    answering,
    capture,
    committed,
    connection,
    due,
    get,
    plan,
    post,
    replay,
    results,
    running,
    serving,
    until,
)


def at(ms: float) -> Nanos:
    return Nanos(BEGIN + int(ms * MS))


def test_pipelined_requests_go_out_one_after_the_other(kafka: KafkaCluster, topic: str) -> None:
    recording = Recording("node", "c")
    recording.read(at(0), get("/1") + post("/2", b"two") + get("/3"))
    recording.end_of_request(at(1))
    recording.write(at(2), OK * 3)
    capture(kafka.address, topic, {"c": recording.take(last=True)})
    held = Held("/1")

    async def main() -> None:
        async with serving(held) as server:
            async with running(plan(kafka.address, topic, server)) as run:
                await until(lambda: server.arrivals, "the first arrives")
                await until(lambda: run.engine.counters.requests == 3, "all are read")
                assert server.paths == ["/1"]
                held.let_go()
            assert server.paths == ["/1", "/2", "/3"]
            assert [arrival.mark for arrival in server.arrivals] == ["0-0.0", "0-0.1", "0-0.2"]

    asyncio.run(main())


def test_the_pieces_of_a_request_come_each_at_its_time(kafka: KafkaCluster, topic: str) -> None:
    request = post("/slow", b"0123456789")
    cuts = [(0, request[:10]), (100, request[10:-4]), (250, request[-4:-1]), (300, request[-1:])]
    recording = Recording("node", "c")
    records = []
    for ms, piece in cuts:
        recording.read(at(ms), piece)
        records += recording.take()
    recording.end_of_request(at(301))
    recording.write(at(302), OK)
    records += recording.take(last=True)
    capture(kafka.address, topic, {"c": records})

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server))
            assert len(server.arrivals) == 1
            assert server.arrivals[0].content.endswith(b"\r\n\r\n0123456789")
            left = len(server.arrivals[0].content)
            for arrived, size in server.pieces:
                left -= size
                assert arrived >= due(run, 300 if left < 1 else 250 if left < 4 else 0)
            assert len(server.pieces) > 1

    asyncio.run(main())


def test_a_request_that_takes_longer_than_an_answer_may_is_sent_whole(kafka: KafkaCluster, topic: str) -> None:
    request = post("/slow", b"0123456789")
    recording = Recording("node", "c")
    for number in range(10):
        recording.read(at(number * 350), request[-10 + number : len(request) - 9 + number] if number else request[:-9])
    recording.end_of_request(at(3500))
    capture(kafka.address, topic, {"c": recording.take(last=True)})

    async def main() -> None:
        async with serving() as server:
            # The time for an answer begins with the last piece, and is long enough for a slow machine.
            limits = Limits(answer_within=timedelta(seconds=2))
            run = await replay(plan(kafka.address, topic, server, limits=limits))
            assert [arrival.content[-10:] for arrival in server.arrivals] == [b"0123456789"]
            assert run.engine.counters.failed == 0

    asyncio.run(main())


def test_the_close_of_the_source_comes_at_its_time_and_not_before(kafka: KafkaCluster, topic: str) -> None:
    early = connection("early", [Said(0, get("/early"))], close_at=300)
    late = connection("late", [Said(100, get("/late"))], close_at=700)
    silent = connection("silent", [Said(200, get("/silent"))])
    capture(kafka.address, topic, {"early": early, "late": late, "silent": silent})

    async def main() -> None:
        async with serving() as server:
            async with running(plan(kafka.address, topic, server)) as run:
                await until(lambda: len(server.arrivals) == 3, "all arrive")
                used = {arrival.path: arrival.connection for arrival in server.arrivals}
                first, second = used["/early"], used["/late"]
                await until(lambda: first in server.closed, "the first is closed")
                assert second in server.open or server.closed[second] >= due(run, 700)
            await until(lambda: not server.open, "no connection is left")
            assert server.closed[first] >= due(run, 300)
            assert server.closed[second] >= due(run, 700)

    asyncio.run(main())


def test_an_upgraded_connection_ends_with_its_answer(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    switching = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: chat\r\n\r\n"
    recording = Recording("node", "c")
    recording.read(at(0), get("/chat", "Connection: upgrade", "Upgrade: chat"))
    recording.end_of_request(at(0))
    recording.write(at(1), switching + b"hello")
    recording.read(at(2), b"GET is not a request here\r\n\r\n")
    recording.write(at(3), b"\0\1\2")
    recording.close(at(4))
    capture(kafka.address, topic, {"c": recording.take(last=True)})

    async def main() -> None:
        async with serving(answering(switching + b"hello")) as server:
            await replay(plan(kafka.address, topic, server, results=tmp_path / "results.jsonl"))
            assert server.paths == ["/chat"]

    asyncio.run(main())
    assert [result["verdict"] for result in results(tmp_path / "results.jsonl")] == ["match"]
    assert committed(kafka.address, topic) == [1]


def observation(ms: float, kind: str, **content: object) -> TrafficObservation:
    found = TrafficObservation()
    found.ts.seconds, found.ts.nanos = divmod(at(ms), 1_000_000_000)
    part = getattr(found, kind)
    part.SetInParent()
    for name, value in content.items():
        setattr(part, name, value)
    return found


def by_hand() -> list[bytes]:
    """One connection with every kind of observation there is, cut into three records."""
    answer = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\n"
    first = TrafficStream(connectionId="hand", nodeId="node", number=1)
    first.subStream.extend(
        [
            observation(0, "bind"),
            observation(0, "connect"),
            observation(10, "read", data=b"POST /kept HTTP/1.1\r\nHost: source\r\nConte"),
            observation(20, "readSegment", data=b"nt-Length: 6\r\n\r\nab"),
        ]
    )
    second = TrafficStream(
        connectionId="hand", nodeId="node", number=2, priorRequestsReceived=0, lastObservationWasUnterminatedRead=True
    )
    second.subStream.extend(
        [
            observation(30, "readSegment", data=b"cd"),
            observation(40, "readSegment", data=b"ef"),
            observation(40, "segmentEnd"),
            observation(41, "endOfMessageIndicator", firstLineByteLength=21, headersByteLength=30),
            observation(42, "requestReleasedDownstream", timedOut=True),
            observation(50, "write", data=answer),
            observation(51, "writeSegment", data=b"do"),
            observation(52, "writeSegment", data=b"ne"),
            observation(52, "segmentEnd"),
            observation(60, "read", data=b"GET /dropped HTTP/1.1\r\n"),
            observation(61, "requestDropped"),
        ]
    )
    last = TrafficStream(connectionId="hand", nodeId="node", numberOfThisLastChunk=3, priorRequestsReceived=1)
    last.subStream.extend(
        [
            observation(70, "read", data=get("/second")),
            observation(71, "endOfMessageIndicator"),
            observation(80, "connectionException", message="reset by peer"),
            observation(90, "disconnect"),
            observation(100, "close"),
        ]
    )
    return [stream.SerializeToString() for stream in (first, second, last)]


def test_a_capture_made_by_hand_with_every_observation_replays(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    kinds = {part.WhichOneof("Capture") for record in by_hand() for part in TrafficStream.FromString(record).subStream}
    assert kinds == {field.name for field in TrafficObservation.DESCRIPTOR.oneofs_by_name["Capture"].fields}
    capture(kafka.address, topic, {"hand": by_hand()})

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server, results=tmp_path / "results.jsonl"))
            await until(lambda: not server.open, "no connection is left")
            assert server.paths == ["/kept", "/second"]
            assert server.arrivals[0].content.endswith(b"abcdef")
            assert server.arrivals[0].at >= due(run, 10)
            assert [arrival.mark for arrival in server.arrivals] == ["0-0.0", "0-2.0"]
            assert server.closed[1] >= due(run, 100)
            assert run.engine.spools.in_memory == 0

    asyncio.run(main())
    kept, second = results(tmp_path / "results.jsonl")
    assert (kept["source_response"]["status"], kept["verdict"]) == (201, "status_differs")
    assert second["verdict"] == "no_source"
    assert committed(kafka.address, topic) == [3]


@pytest.mark.parametrize("mark", [True, False])
def test_the_header_that_names_a_request_can_be_left_out(kafka: KafkaCluster, topic: str, mark: bool) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"))])})

    async def main() -> None:
        async with serving() as server:
            await replay(plan(kafka.address, topic, server, marks=mark))
            assert (b"X-Strandline-Request: 0-0.0" in server.arrivals[0].content) is mark

    asyncio.run(main())
