"""What a refused connection does to the clock: nothing where this machine is short of something."""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from resource import RLIMIT_NOFILE, getrlimit, setrlimit

import pytest
import uvloop

from strandline.errors import TargetDown, TargetRefused
from strandline.replay.alarms import Alarms
from strandline.replay.connection import TargetConnection
from strandline.replay.engine import Engine
from strandline.replay.health import MOST_REFUSALS, is_ours
from strandline.replay.limits import Limits
from strandline.replay.process import allow_many_connections
from strandline.replay.session import Phase
from strandline.replay.target import Target
from strandline.units import Nanos
from tests.replay.stand import standing
from tests.replay.support import BEGIN, MS, Said, connection, get, serving, until


class Unsteady(Target):
    """A target to which connections fail with these errors, one after the other; then they are made."""

    def __init__(self, port: int, errors: list[int]) -> None:
        super().__init__(f"http://127.0.0.1:{port}")
        self.errors = errors

    async def connect(self, make: Callable[[], TargetConnection]) -> TargetConnection:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, os.strerror(number))
        return await super().connect(make)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL])
def test_a_machine_that_is_short_of_something_does_not_stop_the_clock(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving() as server, standing(Unsteady(server.port, [number] * 4)) as stand:
            for name in "ab":
                stand.feed(connection(name, [Said(0, get(f"/{name}"))]))
            await until(lambda: stand.engine.works[0].shortages, "a connection cannot be made")
            assert not stand.engine.leave.against
            await until(lambda: sorted(stand.paths) == ["/a", "/b"], "both are sent when there is room")
            assert stand.engine.counters.failed == 0

    with caplog.at_level(logging.WARNING):
        uvloop.run(main())
    (line,) = caplog.messages
    assert f"({OSError(number, os.strerror(number))}); raise the limit on open files" in line


def test_a_machine_that_stays_short_ends_the_replay_with_a_clear_line() -> None:
    async def main() -> None:
        limits = Limits(down_for=timedelta(seconds=4))
        async with serving() as server, standing(Unsteady(server.port, [errno.EMFILE] * 3), limits=limits) as stand:
            stand.feed(connection("c", [Said(0, get("/"))]))
            with pytest.raises(TargetRefused, match=r"no connection could be made from here in 3 .*ulimit -n"):
                while True:
                    stand.engine.check()
                    await asyncio.sleep(0.01)

    uvloop.run(main())


def test_a_target_that_is_down_often_costs_no_request_while_the_clock_stops_for_it() -> None:
    async def main() -> None:
        refusals = [errno.ECONNREFUSED] * (MOST_REFUSALS + 2)
        async with serving() as server, standing(Unsteady(server.port, refusals)) as stand:
            stand.feed(connection("c", [Said(0, get("/"))]))
            await until(lambda: stand.paths == ["/"], "it is sent at last")
            assert stand.engine.counters.failed == 0

    uvloop.run(main())


def test_a_target_that_is_reached_now_and_then_and_takes_no_request_ends_the_replay() -> None:
    async def main() -> None:
        limits = Limits(down_for=timedelta(seconds=1))
        refusals = [errno.ECONNREFUSED] * 10_000
        async with serving() as server, standing(Unsteady(server.port, refusals), limits=limits) as stand:
            stand.feed(connection("c", [Said(0, get("/"))]))
            with pytest.raises(TargetDown, match=r"could not be reached for 1 s .*Connection refused"):
                while True:
                    stand.engine.check()
                    await asyncio.sleep(0.01)

    uvloop.run(main())


class ByHand(Alarms):
    """Alarms that ring when they are told to."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.loop, engine.clock)
        self.kept: list[tuple[Nanos, Callable[[], None]]] = []

    def at(self, due: Nanos, callback: Callable[[], None]) -> None:
        self.kept.append((due, callback))

    def ring(self) -> None:
        """Those who are called too early ask again."""
        kept, self.kept = self.kept, []
        for _, callback in kept:
            callback()


def test_while_the_target_is_down_only_closes_that_were_due_are_done() -> None:
    async def main() -> None:
        async with serving() as server, standing(target := Unsteady(server.port, [])) as stand:
            engine = stand.engine
            engine.alarms.close()
            engine.alarms = alarms = ByHand(engine)
            stand.feed(connection("due", [Said(0, get("/due"))]))
            stand.feed(connection("later", [Said(0, get("/later"))], close_at=90_000))
            while len(stand.finished) < 2:
                alarms.ring()
                await asyncio.sleep(0.01)
            due, later = engine.sessions
            await server.stop()
            target.errors.append(errno.ECONNREFUSED)
            stand.feed(connection("c", [Said(1, get("/refused"))]))
            await until(lambda: engine.leave.against, "the target is found down")
            stood_at = engine.timeline.reached()
            assert stood_at is not None
            due.end(stood_at)
            assert due.phase is Phase.CLOSED
            await until(lambda: len(server.open) == 1, "what was due is closed")
            before = engine.timeline.due(Nanos(BEGIN + 90_000 * MS))
            assert [at for at, _ in alarms.kept] == [before]
            alarms.ring()
            assert later.phase is Phase.IDLE
            assert not alarms.kept, "while the clock stands nobody knows its time"
            await server.start()
            await until(lambda: alarms.kept, "it is to be closed in its time")
            [(at, _)] = alarms.kept
            assert at == engine.timeline.due(Nanos(BEGIN + 90_000 * MS)) == before + engine.timeline.stood

    uvloop.run(main())


@contextmanager
def no_descriptors() -> Iterator[None]:
    """All that this process may have are taken."""
    limits = getrlimit(RLIMIT_NOFILE)
    taken = [os.dup(0)]
    setrlimit(RLIMIT_NOFILE, (max(taken) + 1, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


def test_a_name_that_cannot_be_looked_up_is_our_fault_only_without_descriptors() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert not is_ours(error)
    with no_descriptors():
        assert is_ours(error)


def test_the_command_takes_as_many_open_files_as_it_may() -> None:
    limits = getrlimit(RLIMIT_NOFILE)
    try:
        setrlimit(RLIMIT_NOFILE, (min(256, limits[1]), limits[1]))
        allow_many_connections()
        assert getrlimit(RLIMIT_NOFILE) == (limits[1], limits[1])
    finally:
        setrlimit(RLIMIT_NOFILE, limits)
