"""The engine without Kafka: sessions by partition and generation, what ends them, and what each attempt sends."""

import asyncio
import gc
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256

import pytest
import uvloop
from opentelemetry.sdk.trace import TracerProvider

from strandline.clock import ManualClock, SystemClock
from strandline.replay.alarms import Alarms
from strandline.replay.auth import AuthConfig, SigV4Config
from strandline.replay.changes import TransformConfig
from strandline.replay.connection import TargetConnection
from strandline.replay.engine import Engine
from strandline.replay.leave import Reason
from strandline.replay.limits import Limits
from strandline.replay.retries import DefaultRetry
from strandline.replay.session import Phase, Session
from strandline.replay.stopping import break_off, stop
from strandline.replay.target import Target
from strandline.replay.timeline import AS_FAST_AS_POSSIBLE
from strandline.replay.tracing import TracedEngine
from strandline.replay.transforms import Transform
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.head import Head
from strandline.wire.traffic import Recording
from strandline.wire.transactions import Cause
from tests.replay.stand import Stand, standing
from tests.replay.support import (
    BEGIN,
    MS,
    OK,
    Held,
    Peer,
    Said,
    connection,
    get,
    listening_with_little_room,
    post,
    serving,
    until,
)
from tests.support import TIMEOUT


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
            await stop(stand.engine, [0], timedelta(0))
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
            slow, quick = (id(session) for session in stand.engine.sessions)
            await until(lambda: stand.paths == ["/quick"] and len(server.open) == 1, "the second is over")
            gc.collect()
            assert {slow, quick} & {id(found) for found in gc.get_objects() if isinstance(found, Session)} == {slow}

    uvloop.run(main())


def test_what_lies_in_the_log_before_a_request_that_was_sent_goes_out_before_the_engine_stops() -> None:
    async def main() -> None:
        held = Held("/hold")
        async with serving(held) as server, standing(server) as stand:
            stand.feed(connection("slow", [Said(n, get(path)) for n, path in enumerate(["/hold", "/before"])]))
            await until(lambda: server.paths == ["/hold"], "it is sent, and not answered")
            quick = [Said(2, get("/quick")), Said(60_000, get("/much/later"))]
            stand.feed(connection("quick", quick))
            await until(lambda: stand.paths == ["/quick"], "what lies behind it was sent")
            stopping = asyncio.create_task(stop(stand.engine, [0], timedelta(seconds=TIMEOUT)))
            await until(lambda: len(stand.engine.sessions) == 1, "the quick one has nothing more to send")
            held.let_go()
            await stopping
            assert server.paths == ["/hold", "/quick", "/before"]
            assert stand.paths == ["/quick", "/hold", "/before"]
            assert stand.engine.release(0) is None, "nothing repeats"

    uvloop.run(main())


def test_an_engine_that_stops_too_soon_tells_from_where_on_requests_repeat() -> None:
    async def main() -> None:
        async with serving(Held("/hold")) as server, standing(server) as stand:
            stand.feed(one("/first"))
            await until(lambda: stand.paths == ["/first"], "the first is over")
            stand.feed(connection("slow", [Said(1, get("/hold"))]))
            stand.feed(connection("quick", [Said(2, get("/quick"))]))
            await until(lambda: len(server.paths) == 3, "all were sent")
            await stop(stand.engine, [0], timedelta(0))
            assert stand.engine.release(0) == 1

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
            await stop(stand.engine, [0], timedelta(0))
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
            # Not counted from when it began to be sent, which may be late.
            assert first.ended >= stand.engine.timeline.due(Nanos(BEGIN + 900 * MS)) + 200 * MS

    uvloop.run(main())


class Watched(asyncio.Protocol):
    """A connection that tells when it is gone."""

    def __init__(self, watched: TargetConnection) -> None:
        self.connection_made = watched.connection_made  # type: ignore[method-assign]
        self.data_received = watched.data_received  # type: ignore[method-assign]
        self.pause_writing = watched.pause_writing  # type: ignore[method-assign]
        self.resume_writing = watched.resume_writing  # type: ignore[method-assign]
        self._watched = watched
        self.is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._watched.connection_lost(exc)
        self.is_lost = True


def test_a_target_that_answers_and_reads_no_more_does_not_keep_its_connection() -> None:
    async def main() -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        alarms = Alarms(loop, clock)
        made = TargetConnection(clock, alarms, lambda: True, lambda _: None)
        watched = Watched(made)
        status = loop.create_future()

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await until(lambda: watched.is_lost, "the connection is closed")
            writer.close()

        server = await asyncio.start_server(refuse, sock=listening_with_little_room(), limit=1024)
        await loop.create_connection(lambda: watched, "127.0.0.1", server.sockets[0].getsockname()[1])
        content = post("/", bytes(32 << 20))
        made.send(content, (), b"POST", 1024, lambda answer, _: status.set_result(answer and answer.status))
        await until(lambda: watched.is_lost, "the connection is closed")
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


class Interrupted:
    """Signs each request, but `/first` only once; before it refuses that, somebody is called."""

    needs_body = False
    is_timely = True

    def __init__(self) -> None:
        self.has_signed = False
        self.call: Callable[[], object] = lambda: None

    def describe(self) -> str:
        return "sign"

    def apply(self, head: Head, _body: bytes, _now: Nanos) -> Head:
        if head.first_line.startswith(b"GET /first "):
            if self.has_signed:
                self.call()
                raise ValueError("no credentials")
            self.has_signed = True
        return head


def test_a_request_behind_one_that_cannot_be_made_again_is_sent_though_the_engine_is_stopped_just_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signing = Interrupted()
    monkeypatch.setattr("strandline.replay.sigv4.signer", lambda *_: signing)
    config = TransformConfig(auth=AuthConfig(sigv4=SigV4Config(service="es", region="x")))
    stopping: list[asyncio.Task[None]] = []
    let_go = asyncio.Event()

    async def answer(peer: Peer, request: bytes) -> None:
        if b"/first" in request:
            await let_go.wait()
        await busy_first(peer, request)

    async def main() -> None:
        async with serving(answer) as server, standing(server, transform=Transform("target", config)) as stand:
            signing.call = lambda: stopping.append(
                asyncio.create_task(stop(stand.engine, [0], timedelta(seconds=TIMEOUT)))
            )
            stand.feed(connection("slow", [Said(0, get("/first")), Said(1, get("/next"))]))
            stand.feed(connection("quick", [Said(2, get("/behind"))]))
            await until(lambda: stand.paths == ["/behind"], "what lies behind both is sent")
            let_go.set()
            await until(lambda: stopping, "the second attempt cannot be made")
            await stopping[0]
            assert sorted(server.paths) == ["/behind", "/first", "/next"]
            assert stand.paths == ["/behind", "/first", "/next"]
            _, first, following = stand.finished
            assert (len(first.attempts), first.error) == (1, "sign: no credentials")
            assert (len(following.attempts), following.error) == (1, None)

    uvloop.run(main())


@pytest.mark.parametrize("cause", [Cause.CLOSED, Cause.EXPIRED])
def test_a_close_and_an_expiry_need_no_slot(cause: Cause) -> None:
    async def main() -> None:
        held = Held("/hold")
        async with (
            serving(held) as server,
            standing(server, limits=Limits(concurrency=1), speed=AS_FAST_AS_POSSIBLE) as stand,
        ):
            stand.feed(one("/first"))
            await until(lambda: stand.paths == ["/first"], "the first is over")
            stand.feed(connection("slow", [Said(1, get("/hold"))]), partition=1)
            stand.feed(connection("next", [Said(2, get("/next"))]), partition=1)
            await until(lambda: "/hold" in server.paths, "the only slot is taken")
            if cause is Cause.CLOSED:
                stand.accumulator.drop(0, cause)
            else:
                # At full speed all that lies behind is due.
                stand.accumulator.advance(0, Nanos(BEGIN + 2 * 10**11))
            await until(lambda: len(server.closed) == 1, "the first connection is closed")
            assert server.paths == ["/first", "/hold"]
            held.let_go()
            await until(lambda: stand.paths[-1] == "/next", "the rest goes on")

    uvloop.run(main())


BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


def unanswered(name: str, *paths: str) -> list[bytes]:
    """A connection whose requests the source has not answered as far as it was read."""
    return connection(name, [Said(0, get(path), None) for path in paths])


async def busy_first(peer: Peer, request: bytes) -> None:
    peer.write(BUSY if b"/first" in request else OK)


def test_a_connection_that_is_stopped_waits_for_the_source_no_longer() -> None:
    """Else reading would never rest again."""

    async def main() -> None:
        async with serving(busy_first) as server, standing(server) as stand:
            engine = stand.engine
            stand.feed(unanswered("c", "/first", "/second"), partition=0)
            await until(lambda: engine.is_waiting_for_source, "it waits for the source")
            stand.feed(connection("later", [Said(1, get("/later"))]), partition=0)
            await until(lambda: engine.sent_through(0) == 2, "what lies behind it in the log was sent")
            await stop(engine, [0], timedelta(seconds=TIMEOUT))
            assert server.paths == ["/first", "/later", "/second"], "what lies before it goes out still"
            assert not engine.is_waiting_for_source

    uvloop.run(main())


class Patient:
    """Sends again where the default does, after an hour."""

    def __init__(self) -> None:
        self._default = DefaultRetry()
        self.needs_source = self._default.needs_source

    def decide(self, attempt: int, source: Answer | None, target: Answer | None, request: bytes) -> Nanos | None:
        delay = self._default.decide(attempt, source, target, request)
        return None if delay is None else Nanos(3_600_000 * MS)


@pytest.mark.parametrize("is_answered", [True, False])
def test_of_a_partition_that_is_lost_nothing_more_is_sent(is_answered: bool) -> None:
    """Neither what waits for its next attempt or for the source, nor what is due behind it."""

    async def main() -> None:
        async with serving(busy_first) as server, standing(server, policy=Patient()) as stand:
            engine = stand.engine
            answer = OK if is_answered else None
            stand.feed(connection("c", [Said(0, get("/first"), answer), Said(0, get("/second"), answer)]))
            stand.feed(connection("later", [Said(1, get("/later"))]))
            await until(lambda: stand.paths == ["/later"] and "/first" in server.paths, "two were sent, one is over")
            awaited = Phase.BACKING_OFF if is_answered else Phase.UNDECIDED
            await until(lambda: awaited in {session.phase for session in engine.sessions}, "the first is not over")
            before = engine.counters.attempts
            break_off(engine, [0])
            assert not engine.sessions
            assert not engine.is_waiting_for_source
            await until(lambda: not server.open, "no connection is left")
            assert engine.counters.attempts == before
            assert stand.paths == ["/later"], "whoever has the partition tells what became of the others"

    uvloop.run(main())


class Owning:
    """Stands still when it is told to, and is never proven to own anything."""

    stalled = Nanos(0)

    async def prove(self) -> bool:
        return False

    def stalled_for(self, _now: Nanos) -> Nanos:
        return self.stalled


def test_after_a_stall_what_the_kernel_has_not_taken_does_not_go_out() -> None:
    async def main() -> None:
        resets: list[bool] = []

        async def read_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await until(lambda: resets, "the test is over")
            writer.close()

        server = await asyncio.start_server(read_no_more, sock=listening_with_little_room(), limit=1024)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        owner = Owning()
        # Longer than a machine stalls by itself: what the engine finds is what the owner says.
        async with server, standing(target, owner=owner, stalled_after=timedelta(seconds=TIMEOUT)) as stand:
            stand.feed(connection("large", [Said(0, post("/", bytes(32 << 20)))]))
            stand.feed(connection("small", [Said(0, get("/"))]))
            large, small = stand.engine.works
            phases = [Phase.EXCHANGING] * 2
            await until(lambda: [session.phase for session in stand.engine.sessions] == phases, "both are on their way")
            owner.stalled = Nanos(int(2_000 * TIMEOUT) * MS)
            await until(lambda: large.attempts, "it is broken off")
            assert large.attempts[0].error == "this process stood still before the request was sent whole"
            assert not small.attempts, "what the kernel has may go out"
            assert Reason.UNPROVEN in stand.engine.leave.against
            resets.append(True)

    uvloop.run(main())
