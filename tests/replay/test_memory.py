"""Bytes beyond the bound on memory go to disk, and reading never waits for what only reading can free."""

import asyncio
import hashlib
import random
from datetime import timedelta
from pathlib import Path

import uvloop

from strandline.replay.limits import Limits
from strandline.replay.replay import AT_ONCE
from strandline.stack.kafka import KafkaCluster
from strandline.units import Nanos
from strandline.wire.traffic import Recording
from tests.replay.support import (
    BEGIN,
    MS,
    OK,
    Held,
    Peer,
    Said,
    capture,
    committed,
    connection,
    get,
    plan,
    post,
    replay,
    results,
    running,
    serving,
    until,
    write,
)

MEBI = 1 << 20


def body_of(arrival: bytes) -> bytes:
    return arrival.partition(b"\r\n\r\n")[2]


def test_a_request_larger_than_all_memory_replays_byte_for_byte(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    body = random.Random(1).randbytes(8 * MEBI)
    said = [Said(0, post("/large", body)), Said(10, get("/after"))]
    capture(kafka.address, topic, {"c": connection("c", said)})

    async def main() -> None:
        async with serving() as server:
            path = tmp_path / "results.jsonl"
            run = await replay(plan(kafka.address, topic, server, limits=Limits(memory=MEBI), results=path))
            assert server.paths == ["/large", "/after"]
            assert body_of(server.arrivals[0].content) == body
            assert (run.engine.spools.in_memory, run.engine.spools.on_disk, run.engine.waiting_bytes) == (0, 0, 0)

    uvloop.run(main())
    [large] = [result["source_request"] for result in results(tmp_path / "results.jsonl") if result["id"] == "0-0.0"]
    assert (large["length"], large["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())


def test_half_requests_that_fill_the_memory_do_not_stop_reading(kafka: KafkaCluster, topic: str) -> None:
    bodies = {f"c{n}": random.Random(n).randbytes(300_000) for n in range(8)}
    recordings = {name: Recording("node", name) for name in bodies}
    records: list[tuple[str, bytes]] = []
    for half in range(2):
        for name, body in bodies.items():
            content = post(f"/{name}", body)
            recordings[name].read(Nanos(BEGIN + half * MS), content[half * 200_000 : (half + 1) * 200_000 or None])
            if half:
                recordings[name].read(Nanos(BEGIN + 2 * MS), content[400_000:])
                recordings[name].end_of_request(Nanos(BEGIN + 2 * MS))
            records += [(name, record) for record in recordings[name].take(last=bool(half))]
    create_and_write(kafka, topic, records)

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server, limits=Limits(memory=MEBI)))
            assert {arrival.path[1:]: body_of(arrival.content) for arrival in server.arrivals} == bodies
            assert run.engine.spools.in_memory == 0

    uvloop.run(main())
    assert committed(kafka.address, topic) == [16]


def test_no_more_is_read_than_the_look_ahead_allows(kafka: KafkaCluster, topic: str) -> None:
    count = 12_000
    capture(kafka.address, topic, {"c": connection("c", [Said(10 * n, get(f"/{n}")) for n in range(count)])})

    async def main() -> None:
        async with serving() as server:
            ahead = {"lookahead": timedelta(seconds=1), "packet_timeout": timedelta(seconds=0.5)}
            async with running(plan(kafka.address, topic, server, **ahead)) as run:
                await until(lambda: server.arrivals, "the first arrives")
                before = -1
                while before < run.engine.counters.requests:
                    before = run.engine.counters.requests
                    await asyncio.sleep(0.5)
                # What the member had taken already still came: 5,000 records at most, and those of one poll.
                reached = run.engine.timeline.reached()
                assert reached is not None
                assert before <= (reached - BEGIN) / (10 * MS) + 100 + 5_000 + 2 * AT_ONCE < count
                await until(lambda: len(server.arrivals) > 100, "they arrive at their time")
                run.stop()

    uvloop.run(main())


def create_and_write(kafka: KafkaCluster, topic: str, records: list[tuple[str, bytes]]) -> None:
    capture(kafka.address, topic, {})
    write(kafka.address, topic, records)


def test_reading_waits_while_whole_requests_fill_the_memory_and_goes_on_when_they_are_sent(
    kafka: KafkaCluster, topic: str
) -> None:
    body = bytes(100_000)
    count = 400  # more than a member takes before it is told to pause: 16 MiB and 100 records
    connections = {f"c{n}": connection(f"c{n}", [Said(n / 10, post(f"/{n}", body))]) for n in range(count)}
    capture(kafka.address, topic, connections)
    held = Held(*(f"/{n}" for n in range(count)))

    async def main() -> None:
        async with serving(held) as server:
            async with running(plan(kafka.address, topic, server, limits=Limits(memory=4 * MEBI))) as run:
                await until(lambda: run.is_running and run.engine.waiting_bytes > 2 * MEBI, "memory fills")
                before = -1
                while before < run.engine.counters.requests:
                    before = run.engine.counters.requests
                    await asyncio.sleep(0.5)
                # What the member had taken already still came.
                assert before < count
                held.let_go()
            assert len(server.arrivals) == count
            assert all(body_of(arrival.content) == body for arrival in server.arrivals)

    uvloop.run(main())


def test_a_source_answer_far_behind_in_the_log_is_read_though_memory_is_full(kafka: KafkaCluster, topic: str) -> None:
    """The target answers 500, so whether to send again depends on the source's answer, which comes after all else."""
    recording = Recording("node", "first")
    recording.read(Nanos(BEGIN), get("/first"))
    recording.end_of_request(Nanos(BEGIN))
    begin = recording.take()
    recording.write(Nanos(BEGIN + 50 * MS), OK)
    end = recording.take(last=True)
    body = bytes(100_000)
    said = [Said(10 + n, post(f"/{n}", body)) for n in range(40)]
    waiting = connection("first-too", said)
    capture(kafka.address, topic, {"first": begin, "first-too": waiting, "end": []})
    write(kafka.address, topic, (("first", record) for record in end))

    async def answer(peer: Peer, request: bytes) -> None:
        is_first = request.startswith(b"GET /first ")
        peer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" if is_first else OK)

    async def main() -> None:
        async with serving(answer) as server:
            limits = Limits(memory=MEBI, concurrency=1)
            run = await replay(plan(kafka.address, topic, server, limits=limits, lookahead=timedelta(seconds=400)))
            assert server.paths.count("/first") == 4
            assert len(server.arrivals) == 44
            assert run.engine.spools.on_disk == 0

    uvloop.run(main())
    assert committed(kafka.address, topic) == [42]
