"""The engine without Kafka: sessions by partition and generation, and what ends them."""

from datetime import timedelta

import uvloop
from opentelemetry.sdk.trace import TracerProvider

from strandline.replay.engine import Engine
from strandline.replay.tracing import TracedEngine
from tests.replay.stand import Stand, standing
from tests.replay.support import Held, Said, connection, get, serving, until


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
