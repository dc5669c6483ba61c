"""Results that Kafka does not take for now."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import uvloop

from strandline.clock import SystemClock
from strandline.kafka.producer import Publisher
from strandline.replay.limits import Limits
from strandline.replay.output import Output
from strandline.replay.plan import Until
from strandline.stack.kafka import KafkaCluster
from strandline.stack.ports import free_port
from tests.replay.stand import Stand, standing
from tests.replay.support import (
    Peer,
    Said,
    answering,
    capture,
    committed,
    connection,
    get,
    plan,
    running,
    serving,
    until,
)
from tests.support import frozen

MEBI = 1 << 20
LARGE = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n" + bytes(60_000)
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2_000)


@asynccontextmanager
async def nowhere(stand: Stand) -> AsyncIterator[Output]:
    """An output to a Kafka that is not there, with room for two large results or so."""
    settings = {"bootstrap.servers": f"127.0.0.1:{free_port()}", "queue.buffering.max.kbytes": 256}
    fail, nothing = stand.engine.fail, lambda _: None
    output = Output(Publisher(settings), fail, nothing, SystemClock(), topic="results", dead_letters="dead")
    try:
        yield output
    finally:
        output.close()


def test_results_that_find_no_room_count_as_memory_and_it_stays_bounded() -> None:
    count = 100

    async def main() -> None:
        limits = Limits(memory=MEBI, concurrency=1)
        async with (
            serving(answering(LARGE)) as server,
            standing(server, limits=limits) as stand,
            nowhere(stand) as output,
        ):
            stand.finish = output.write
            for number in range(count):
                stand.feed(connection(f"c{number}", [Said(number, get(f"/{number}"), LARGE)]))
            await until(lambda: output.unsafe == count, "all are answered")
            await until(lambda: output.is_behind, "there is no room for their results")
            assert len(server.arrivals) == count, "nothing waits for Kafka"
            held = stand.engine.spools.in_memory
            # Beside the bound: what each takes but for its bodies, and answers that were begun while there was room.
            assert MEBI / 2 < held < MEBI + count * 5_000 + len(LARGE) * 2
            stand.engine.check()

    uvloop.run(main())


def test_a_replay_goes_on_while_kafka_is_away_and_commits_all_when_it_is_back(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.replay.replay.WRITE_BEHIND_KIB", 64)
    count = 60
    said = [Said(100 + 10 * number, get(f"/{number}"), SMALL) for number in range(count)]
    capture(kafka.address, topic, {"first": connection("first", [Said(0, get("/"))]), "c": connection("c", said)})

    async def main() -> None:
        is_frozen = asyncio.Event()

        async def answer(peer: Peer, request: bytes) -> None:
            if request.startswith(b"GET /0 "):
                # Nothing behind it is sent before: its results would be safe.
                await is_frozen.wait()
            peer.write(SMALL)

        async with serving(answer) as server:
            chosen = plan(kafka.address, topic, server, until=Until.NEVER, drain=timedelta(seconds=60))
            async with running(chosen) as run:
                await until(lambda: server.arrivals and run.engine.counters.requests == count + 1, "all is read")
                with frozen(kafka):
                    is_frozen.set()
                    await until(lambda: len(server.arrivals) == count + 1, "all are sent meanwhile")
                    await until(lambda: run.output.is_behind, "results find no room")
                await until(lambda: not run.output.unsafe, "all results are safe")
                run.stop()

    asyncio.run(main())
    assert committed(kafka.address, topic) == [count + 1]
