"""The engine without Kafka: sessions by partition and generation, what ends them, and what each attempt sends."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256

import pytest
import uvloop
from opentelemetry.sdk.trace import TracerProvider

from strandline.clock import ManualClock, SystemClock
from strandline.replay.alarms import Alarms
from strandline.replay.auth import AuthConfig, SigV4Config
from strandline.replay.engine import Engine, Limits
from strandline.replay.session import Phase
from strandline.replay.target import Target, TargetConnection
from strandline.replay.tracing import TracedEngine
from strandline.replay.transforms import Transform, TransformConfig
from strandline.units import Nanos
from strandline.wire.traffic import Recording
from tests.replay.stand import Stand, standing
from tests.replay.support import BEGIN, MS, OK, Held, Peer, Said, connection, get, post, serving, until


def one(path: str, at: float = 0) -> list[bytes]:
    """A connection named c with one request."""
    return connection("c", [Said(at, get(path))])


def trace(stand: Stand) -> None:
    if isinstance(stand.engine, TracedEngine):
        stand.engine.trace_to(TracerProvider().get_tracer("test"))


def test_a_connection_on_two_partitions_loses_only_what_lies_on_the_one_that_goes() -> None:
    async def main(kind: type[Engine]) -> None:
        held = Held("/one", "/two")
        async with serving(held) as server, standing(server, kind) as stand:
            trace(stand)
            stand.feed(one("/one"), partition=0)
            stand.feed(one("/two"), partition=1)
            await until(lambda: sorted(server.paths) == ["/one", "/two"], "both are on their way")
            await stand.engine.stop([0], timedelta(0))
            assert [session.partition for session in stand.engine.sessions] == [1]
            assert (stand.engine.counters.ours, stand.engine.counters.to_send) == (2, 0), "both were sent"
            held.let_go()
            await until(lambda: stand.paths == ["/two"], "the other one is answered")

    uvloop.run(main(Engine))
    uvloop.run(main(TracedEngine))


def test_a_session_of_an_earlier_generation_is_gone_when_a_request_of_a_new_one_comes() -> None:
    async def main(kind: type[Engine]) -> None:
        held = Held("/old")
        async with serving(held) as server, standing(server, kind) as stand:
            trace(stand)
            stand.feed(one("/old"), generation=1)
            await until(lambda: server.paths == ["/old"], "the first is on its way")
            stand.feed(one("/new"), generation=2)
            (session,) = stand.engine.sessions
            assert session.generation == 2
            await until(lambda: stand.paths == ["/new"], "the second is answered, and the first never")
            assert [arrival.connection for arrival in server.arrivals] == [1, 2]
            assert (stand.engine.in_flight, stand.engine.waiting_bytes) == (0, 0)

    uvloop.run(main(Engine))
    uvloop.run(main(TracedEngine))


def test_what_is_not_http_goes_out_as_it_is_unless_something_is_to_be_changed() -> None:
    raw = b"GET /secret HTTP/1.1\r\nCookie: a\r\nX-Long: " + b"x" * 300_000 + b"\r\n\r\n"

    async def main(config: TransformConfig) -> tuple[bytes, str | None]:
        received = b""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            while not received.endswith(b"\r\n\r\n") and (data := await reader.read(1 << 16)):
                received += data
            writer.write(OK)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server, standing(target, transform=Transform("target", config)) as stand:
            stand.feed(connection("c", [Said(0, raw)]))
            await until(lambda: stand.finished, "it is over")
            return received, stand.finished[0].error

    assert uvloop.run(main(TransformConfig())) == (raw, None)
    told = "read the request: it is not HTTP/1, or its head is too long"
    assert uvloop.run(main(TransformConfig(auth="remove"))) == (b"", told)


def test_a_session_that_is_closed_is_let_go_though_an_older_exchange_goes_on() -> None:
    async def main() -> None:
        async with serving(Held("/hangs")) as server, standing(server) as stand:
            stand.feed(connection("slow", [Said(0, get("/hangs"))]))
            await until(lambda: server.paths == ["/hangs"], "the first is on its way")
            stand.feed(connection("quick", [Said(1, get("/quick"))], close_at=2))
            sessions = [weakref.ref(session) for session in stand.engine.sessions]
            await until(lambda: stand.paths == ["/quick"] and len(server.open) == 1, "the second is over")
            gc.collect()
            assert [session() is None for session in sessions] == [False, True]

    uvloop.run(main())


@pytest.fixture
def far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are opened as soon as their first request is known."""
    monkeypatch.setattr("strandline.replay.session.AHEAD", Nanos(3_600_000 * MS))


@pytest.mark.usefixtures("far_ahead")
def test_a_connection_is_open_before_its_first_request_is_due_and_closed_when_its_partition_goes() -> None:
    async def main() -> None:
        async with serving() as server, standing(server) as stand:
            stand.feed(connection("now", [Said(0, get("/now"))], close_at=0))
            stand.feed(connection("later", [Said(60_000, get("/later"))]))
            await until(lambda: len(server.closed) == 1 and len(server.open) == 1, "the second is open")
            assert server.paths == ["/now"]
            assert stand.engine.in_flight == 0
            assert (stand.engine.counters.ours, stand.engine.counters.to_send) == (2, 1)
            await stand.engine.stop([0], timedelta(0))
            await until(lambda: not server.open, "it is closed")
            assert (stand.engine.counters.ours, stand.engine.counters.to_send) == (1, 0)

    uvloop.run(main())


@pytest.mark.usefixtures("far_ahead")
def test_a_connection_that_rests_is_not_opened_before_its_rest_is_over() -> None:
    async def main() -> None:
        limits = Limits(quiescence=timedelta(minutes=10))
        async with serving() as server, standing(server, limits=limits) as stand:
            stand.engine.assign(0, stand.engine.clock.monotonic())
            stand.feed(connection("begins", [Said(0, get("/begins"))]), partition=1)
            *_, going_on = connection("goes-on", [Said(0, get("/0")), Said(60_000, get("/1"))])
            stand.feed([going_on], partition=0)
            stand.feed(connection("later", [Said(60_000, get("/later"))]), partition=1)
            await until(lambda: len(server.open) == 2, "the two that need not rest are open")
            assert len(stand.engine.sessions) == 3

    uvloop.run(main())


class Shut(Target):
    """Takes no connection, and counts who asked."""

    asked = 0

    async def connect(self, make: Callable[[], TargetConnection]) -> TargetConnection:
        self.asked += 1
        raise ConnectionRefusedError


@pytest.mark.usefixtures("far_ahead")
def test_the_clock_does_not_stop_for_a_connection_that_nobody_needs_yet() -> None:
    async def main() -> None:
        target = Shut("http://127.0.0.1:1")
        async with standing(target) as stand:
            stand.engine.timeline.begin(Nanos(BEGIN))
            stand.feed(connection("later", [Said(60_000, get("/later"))]))
            await until(lambda: target.asked, "a connection is asked for")
            assert stand.engine.leave.is_given
            (session,) = stand.engine.sessions
            assert session.phase is Phase.WAITING

    uvloop.run(main())


def test_the_time_for_an_answer_begins_when_a_request_that_came_slowly_is_sent() -> None:
    content = post("/slow", b"12345")
    recording = Recording("node", "c")
    recording.read(Nanos(BEGIN), content[:-1])
    recording.read(Nanos(BEGIN + 900 * MS), content[-1:])
    recording.end_of_request(Nanos(BEGIN + 900 * MS))

    async def main() -> None:
        limits = Limits(answer_within=timedelta(seconds=0.2))
        async with serving(Held("/slow")) as server, standing(server, limits=limits) as stand:
            stand.feed(recording.take())
            (work,) = stand.engine.works
            await until(lambda: work.attempts, "the first attempt is given up")
            first = work.attempts[0]
            assert first.error == "no answer within 0.2 s"
            assert first.ended - first.sent >= 1_000 * MS

    uvloop.run(main())


class Watched(TargetConnection):
    """Tells when it is gone."""

    is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_lost = True


def test_a_target_that_answers_and_reads_no_more_does_not_keep_its_connection() -> None:
    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        alarms = Alarms(loop, clock)
        made = Watched(clock, alarms, lambda: True, lambda _: None)
        status = loop.create_future()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await until(lambda: made.is_lost, "the connection is closed")
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0, limit=1024)
        await Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}").connect(lambda: made)
        content = post("/", bytes(32 << 20))
        made.send(content, (), b"POST", 1024, lambda answer, _: status.set_result(answer and answer.status))
        await until(lambda: made.is_lost, "the connection is closed")
        assert await status == 413
        server.close()
        alarms.close()

    uvloop.run(main())


def test_answers_that_are_being_gathered_count_as_memory_and_are_kept_no_further_when_it_is_full() -> None:
    half = b"x" * 10_000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 20000\r\n\r\n"

    async def main(memory: int) -> tuple[int, str | None]:
        rest = asyncio.Event()

        async def slowly(peer: Peer, _request: bytes) -> None:
            peer.write(head + half)
            await rest.wait()
            peer.write(half)

        recording = Recording("node", "c")
        recording.read(Nanos(BEGIN), get("/"))
        recording.end_of_request(Nanos(BEGIN))
        recording.write(Nanos(BEGIN), head + half)
        begun = recording.take()
        recording.write(Nanos(BEGIN), half)
        async with serving(slowly) as server, standing(server, limits=Limits(memory=memory)) as stand:
            spools = stand.engine.spools
            stand.feed(begun)
            request = spools.in_memory - len(half)
            assert request > 0, "the source's answer counts"
            await until(lambda: spools.in_memory >= request + 2 * len(half), "the target's counts too")
            stand.feed(recording.take())
            rest.set()
            await until(lambda: stand.finished, "it is over")
            assert (spools.in_memory, stand.engine.waiting_bytes) == (0, 0)
            answer = stand.finished[0].answer
            assert answer is not None
            assert answer.length == 2 * len(half)
            return len(answer.body), answer.digest

    assert uvloop.run(main(1 << 20)) == (2 * len(half), None)
    assert uvloop.run(main(2 * len(half))) == (len(half), sha256(2 * half).hexdigest())


def test_each_attempt_is_signed_at_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    wall = ManualClock(BEGIN)
    config = TransformConfig(auth=AuthConfig(sigv4=SigV4Config(service="es", region="eu-west-1")))

    async def refuse_first(peer: Peer, _request: bytes) -> None:
        is_first = not wall.monotonic()
        wall.advance(Nanos(3_600_000 * MS))
        peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n" if is_first else OK)

    async def main() -> None:
        async with serving(refuse_first) as server:
            transform = Transform(f"127.0.0.1:{server.port}", config, wall)
            async with standing(server, transform=transform) as stand:
                stand.feed(one("/"))
                await until(lambda: stand.paths == ["/"], "it is answered")
            first, second = server.arrivals
            assert first.header("X-Amz-Date") == "20260528T202640Z"
            assert second.header("X-Amz-Date") == "20260528T212640Z"
            assert first.header("Authorization") != second.header("Authorization")
            assert first.mark == second.mark

    uvloop.run(main())
