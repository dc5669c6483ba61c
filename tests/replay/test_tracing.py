"""Spans: one for each transaction below one for its connection, every one closed, whatever became of it."""

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from strandline.observe import configured_tracer
from strandline.replay.engine import Engine
from strandline.replay.plan import Until
from strandline.replay.replay import Replay
from strandline.replay.retries import DefaultRetry
from strandline.replay.stopping import stop
from strandline.replay.target import Target
from strandline.replay.tracing import GIVEN_UP, TracedEngine
from strandline.replay.transforms import Transform
from strandline.stack.kafka import KafkaCluster
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, Record
from tests.replay.support import BEGIN, MS, OK, Peer, Said, capture, connection, get, plan, post, serving
from tests.support import TIMEOUT


class Started(SpanProcessor):
    """Counts what was begun."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, span: Span, parent_context: object = None) -> None:
        self.count += 1


class Spans:
    """A place for spans."""

    def __init__(self) -> None:
        self.started = Started()
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(self.started)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def transactions(self) -> dict[str, ReadableSpan]:
        found = [span for span in self.ended if "strandline.id" in (span.attributes or {})]
        ids = [str((span.attributes or {})["strandline.id"]) for span in found]
        assert len(set(ids)) == len(ids)
        return dict(zip(ids, found, strict=True))

    def connections(self) -> dict[str, ReadableSpan]:
        found = [span for span in self.ended if span.name == "connection"]
        return {str((span.attributes or {})["strandline.connection"]): span for span in found}


def attribute(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {}).get(name)


async def mixed(peer: Peer, request: bytes) -> None:
    """A target of every kind."""
    if b"/busy" in request:
        peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    elif b"/reset" in request:
        peer.reset()
    elif b"/hangs" not in request:
        peer.write(OK)


def half(name: str) -> list[bytes]:
    """A connection that was closed in the midst of a request."""
    recording = Recording("node", name)
    recording.read(Nanos(BEGIN), post("/half", b"12345")[:-1])
    recording.close(Nanos(BEGIN + MS))
    return recording.take(last=True)


def open_end(name: str) -> list[bytes]:
    """A connection whose last request is only half in the log."""
    recording = Recording("node", name)
    recording.read(Nanos(BEGIN), post("/open", b"12345")[:-1])
    return recording.take()


SAID = {
    "good": connection("good", [Said(0, get("/1")), Said(1, post("/2", b"x")), Said(2, get("/3"))], close_at=3),
    "busy": connection("busy", [Said(0, get("/busy"))], close_at=1),
    "reset": connection("reset", [Said(0, get("/reset")), Said(1, get("/5"))], close_at=2),
    "half": half("half"),
    "unanswered": connection("unanswered", [Said(0, get("/6"), None)]),
    "hangs": connection("hangs", [Said(0, get("/hangs")), Said(1, get("/never"))]),
    "later": connection("later", [Said(60_000, get("/later"))]),
    "open": open_end("open"),
}
COUNT = 3 + 1 + 2 + 1 + 1 + 2 + 1 + 1


def run_until(
    kafka: KafkaCluster, topic: str, is_enough: Callable[[Replay], bool], end: Callable[[Replay], None]
) -> Spans:
    """Replay all of the above, and end it in some way once there is enough of it."""
    spans = Spans()

    async def main() -> None:
        async with serving(mixed) as server:
            chosen = plan(
                kafka.address,
                topic,
                server,
                until=Until.NEVER,
                drain=timedelta(milliseconds=100),
            )
            run = Replay(chosen, tracer=spans.tracer)
            running = asyncio.ensure_future(run.run())
            async with asyncio.timeout(TIMEOUT):
                while not (run.is_running and is_enough(run)):
                    assert not running.done() or running.result() is None
                    await asyncio.sleep(0.01)
                end(run)
                await asyncio.wait([running])
            assert isinstance(run.engine, TracedEngine)
            error = running.exception()
            assert error is None or "as the test wants it" in str(error)

    asyncio.run(main())
    assert spans.started.count == len(spans.ended)
    return spans


def has_come_far(run: Replay) -> bool:
    """Seven have a result, seven an end at the target; one hangs there, one waits for the source, one for its time."""
    counters = run.engine.counters
    ended = counters.answered + counters.failed
    return (sum(run.output.verdicts.values()), ended, counters.requests, run.engine.in_flight) == (7, 7, 10, 1)


@pytest.fixture(scope="module")
def captured(kafka: KafkaCluster) -> Callable[[str], str]:
    def make(name: str) -> str:
        capture(kafka.address, name, SAID)
        return name

    return make


def test_every_transaction_has_one_span_below_that_of_its_connection(
    kafka: KafkaCluster, captured: Callable[[str], str]
) -> None:
    spans = run_until(kafka, captured("spans-stop"), has_come_far, Replay.stop)
    transactions, connections = spans.transactions(), spans.connections()
    assert len(transactions) == COUNT
    assert set(connections) == SAID.keys() - {"half", "open"}
    for span in transactions.values():
        parent = connections.get(str(attribute(span, "strandline.connection")))
        assert (span.parent and span.parent.span_id) == (parent and parent.context and parent.context.span_id)
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
    by_connection: dict[str, list[ReadableSpan]] = {}
    for span in transactions.values():
        by_connection.setdefault(str(attribute(span, "strandline.connection")), []).append(span)
    for span in by_connection["good"]:
        assert attribute(span, "strandline.verdict") == "match"
        assert attribute(span, "http.response.status_code") == attribute(span, "strandline.source.status_code") == 200
        assert attribute(span, "strandline.attempts") == 1
        assert isinstance(attribute(span, "strandline.lateness_ms"), float)
        assert span.status.status_code is StatusCode.UNSET
    assert sorted(span.name for span in by_connection["good"]) == ["GET", "GET", "POST"]
    (busy,) = by_connection["busy"]
    assert (attribute(busy, "strandline.attempts"), attribute(busy, "strandline.verdict")) == (4, "status_differs")
    reset = by_connection["reset"][0]
    assert (attribute(reset, "strandline.attempts"), reset.status.status_code) == (4, StatusCode.ERROR)
    errors = Counter(
        (name, attribute(span, "error.message") == GIVEN_UP)
        for name, found in by_connection.items()
        for span in found
        if span.status.status_code is StatusCode.ERROR
    )
    given_up = {("hangs", True): 2, ("later", True): 1, ("open", True): 1}
    assert errors == {("reset", False): 1, ("half", False): 1, **given_up}


def test_an_engine_that_is_closed_at_once_leaves_no_span_open(
    kafka: KafkaCluster, captured: Callable[[str], str]
) -> None:
    def fail(run: Replay) -> None:
        run.engine.fail(RuntimeError("as the test wants it"))

    spans = run_until(kafka, captured("spans-fail"), has_come_far, fail)
    # The half request was never told of: the accumulator still has it.
    assert len(spans.transactions()) == COUNT - 1
    assert set(spans.connections()) == SAID.keys() - {"half", "open"}


def test_a_connection_that_is_aborted_ends_its_spans(kafka: KafkaCluster, captured: Callable[[str], str]) -> None:
    def abort(run: Replay) -> None:
        for session in run.engine.sessions:
            session.abort()
        run.stop()

    spans = run_until(kafka, captured("spans-abort"), has_come_far, abort)
    assert len(spans.transactions()) == COUNT


def test_a_partition_that_is_taken_away_ends_the_spans_of_its_connections_and_no_others() -> None:
    spans = Spans()

    async def main() -> None:
        async with serving(mixed) as server:
            target = Target(f"http://127.0.0.1:{server.port}")
            finished: list[str] = []
            engine = TracedEngine(
                target,
                lambda work: finished.append(work.transaction.id),
                transform=Transform(target.authority),
                policy=DefaultRetry(),
            )
            engine.trace_to(spans.tracer)
            engine.timeline.begin(Nanos(BEGIN))
            accumulator = Accumulator(engine, engine.spools.make, expire_after=Nanos(10**11))
            for partition in (0, 1):
                for offset, name in enumerate(["unanswered", "hangs", "later", "open"]):
                    for value in SAID[name]:
                        record = Record(partition, offset, 1, lambda _: None)
                        stream = TrafficStream.FromString(value)
                        stream.nodeId = f"node-{partition}"
                        accumulator.accept(record, stream)
            async with asyncio.timeout(TIMEOUT):
                while (engine.counters.answered, engine.in_flight) != (2, 2):
                    await asyncio.sleep(0.01)
            assert not spans.ended
            await stop(engine, [0], within=timedelta(0))
            accumulator.drop(0, Cause.REASSIGNED)
            assert {attribute(span, "strandline.node") for span in spans.ended} == {"node-0"}
            # The three connections, and their requests with the one that is half in the log.
            assert len(spans.ended) == 3 + 5
            assert finished == ["0-0.0"]
            engine.close()

    asyncio.run(main())
    # What the accumulator alone has, half a request of partition 1, was never told.
    assert spans.started.count == len(spans.ended) == 3 + 5 + 3 + 4


def test_without_an_sdk_the_plain_engine_runs(kafka: KafkaCluster) -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert configured_tracer("test") is None
    capture(kafka.address, "spans-none", {"a": connection("a", [Said(0, get("/"))])})

    async def main() -> None:
        async with serving() as server:
            run = Replay(plan(kafka.address, "spans-none", server))
            async with asyncio.timeout(TIMEOUT):
                await run.run()
            assert type(run.engine) is Engine

    asyncio.run(main())
