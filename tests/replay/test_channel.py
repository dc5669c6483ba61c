"""The driver and its members over real sockets: who is trusted, what is told, what a broken connection does."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from strandline.clock import SystemClock
from strandline.replay import channel
from strandline.replay.channel import Desk, Link
from strandline.replay.messages import MAX_LINE, Order, Orders, Report
from strandline.replay.roster import Roster
from strandline.units import Nanos
from tests.replay.support import until
from tests.support import TIMEOUT

SECRET = bytes(range(32))
FOREVER = Nanos(int(TIMEOUT) * 1_000_000_000)
clock = SystemClock()


@asynccontextmanager
async def driving(roster: Roster) -> AsyncIterator[int]:
    desk = Desk(roster, SECRET, clock)
    port = await desk.open("127.0.0.1")
    try:
        yield port
    finally:
        await desk.close()


class Mate:
    """A member that does nothing but talk."""

    def __init__(self, port: int, secret: bytes = SECRET) -> None:
        self.heard: list[Orders] = []
        self.link = Link("127.0.0.1", port, secret, report=self.report, obey=self.heard.append, clock=clock)

    def report(self) -> Report:
        return Report(task=0, attempt=1, host="h", pid=os.getpid(), at=clock.wall(), owned=[0])


def test_a_member_reports_and_hears_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REPORT_EVERY", 0.01)

    async def main() -> None:
        roster = Roster(1, [0])
        async with driving(roster) as port:
            mate = Mate(port)
            talking = asyncio.ensure_future(mate.link.run(FOREVER))
            await until(lambda: len(mate.heard) > 2, "orders come")
            assert [member.owned for member in roster.members] == [[0]]
            roster.drain()
            await until(lambda: mate.heard[-1].order is Order.DRAIN, "the order comes")
            mate.link.end()
            await asyncio.wait_for(talking, TIMEOUT)
        # Both clocks are one: nothing else may be found.
        best = mate.link.skew.best
        assert best is not None
        assert abs(best.ahead) <= best.doubt

    asyncio.run(main())


def test_a_member_connects_again_when_the_connection_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "REPORT_EVERY", 0.01)

    async def main() -> None:
        roster = Roster(1, [0])
        async with driving(roster) as port:
            relayed: list[asyncio.StreamWriter] = []

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                back, forth = await asyncio.open_connection("127.0.0.1", port)
                relayed.extend((writer, forth))
                await asyncio.gather(pump(reader, forth), pump(back, writer))

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            mate = Mate(server.sockets[0].getsockname()[1])
            talking = asyncio.ensure_future(mate.link.run(FOREVER))
            for times in (1, 2, 3):
                # What it hears from now on comes over the new connection.
                await until(lambda times=times: len(relayed) == 2 * times, "it connects")  # type: ignore[misc]
                before = len(mate.heard)
                await until(lambda before=before: len(mate.heard) > before, "orders come")  # type: ignore[misc]
                for writer in relayed:
                    writer.close()
            mate.link.end()
            await asyncio.wait_for(talking, TIMEOUT)
            server.close()

    asyncio.run(main())


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


def test_a_driver_that_is_gone_for_too_long_is_given_up() -> None:
    async def main() -> None:
        async with driving(Roster(1, [0])) as port:
            mate = Mate(port)
            talking = asyncio.ensure_future(mate.link.run(Nanos(3_000_000_000)))
            await until(lambda: mate.heard, "orders come")
        await asyncio.wait_for(talking, TIMEOUT)
        assert mate.link.silence >= 3_000_000_000

    asyncio.run(main())


def test_who_does_not_know_the_secret_is_not_heard_and_not_obeyed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        roster = Roster(1, [0])
        async with driving(roster) as port:
            stranger = Mate(port, bytes(32))
            talking = asyncio.ensure_future(stranger.link.run(FOREVER))
            await until(lambda: "does not know the secret" in caplog.text, "the driver refuses it")
            talking.cancel()
        assert not stranger.heard
        assert not roster.members
        pretended = 0

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A driver that sends the member's own proof back.
            nonlocal pretended
            writer.write(bytes(32).hex().encode() + b"\n")
            writer.write((await reader.readline()).split(b" ")[1])
            writer.close()
            pretended += 1

        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        mate = Mate(server.sockets[0].getsockname()[1])
        talking = asyncio.ensure_future(mate.link.run(FOREVER))
        # It comes again only when it has refused the one before.
        await until(lambda: pretended > 1, "it is told the proof, and comes again")
        talking.cancel()
        assert not mate.heard
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("said", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"xyz 00\n", b"0" * (MAX_LINE + 100)])
def test_a_stranger_that_says_anything_else_is_cut_off(said: bytes) -> None:
    async def main() -> None:
        async with driving(Roster(1, [0])) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readline()
            writer.write(said)
            with pytest.raises((EOFError, ConnectionError)):
                async with asyncio.timeout(TIMEOUT):
                    await reader.readexactly(1)
            writer.close()

    asyncio.run(main())
