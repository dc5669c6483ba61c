"""The connections between the driver of a fleet and its members: sealed lines over TCP, each report answered by orders.

The decisions are made elsewhere: by the roster (what to order), the seals (whom to trust) and whoever obeys.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable

import msgspec

from strandline.clock import Clock
from strandline.core.retry import Backoff
from strandline.core.seal import CHALLENGE_BYTES, Handshake, NotTrusted, Seal, Side
from strandline.core.skew import Skew
from strandline.replay.messages import MAX_LINE, Orders, Report, encode, read_orders, read_report
from strandline.replay.roster import Roster
from strandline.units import Nanos

REPORT_EVERY = 0.5
GREET_WITHIN = 5.0
ANSWER_WITHIN = 5.0
IDLE_AFTER = 60.0
MOST_STRANGERS = 64
"""Connections that have not shown yet that they know the secret."""
BACKOFF = Backoff(first=Nanos(100_000_000), ceiling=Nanos(1_000_000_000), jitter=0)

log = logging.getLogger(__name__)

Broken = (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError, NotTrusted, msgspec.MsgspecError)
"""What a connection can end with: that of the network, of a stranger, and lines that are too long or none of ours."""


class Desk:
    """The driver's end: listens, and answers every report."""

    def __init__(self, roster: Roster, secret: bytes, clock: Clock) -> None:
        self._roster = roster
        self._secret = secret
        self._clock = clock
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, host: str) -> int:
        """Listen; the port."""
        self._server = await asyncio.start_server(self._serve, host, 0, limit=MAX_LINE)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Listen no more, and break what is open."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._strangers >= MOST_STRANGERS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            self._strangers += 1
            try:
                async with asyncio.timeout(GREET_WITHIN):
                    theirs, ours = await self._greet(reader, writer)
            finally:
                self._strangers -= 1
            await self._answer(reader, writer, theirs, ours)
        except NotTrusted as error:
            log.warning("a connection of %s was refused: %s", writer.get_extra_info("peername"), error)
        except Broken as error:
            log.debug("a member's connection has ended: %r", error)
        except asyncio.CancelledError:
            pass  # asyncio would tell of a task of its own that was cancelled
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Seal, Seal]:
        challenge = os.urandom(CHALLENGE_BYTES)
        writer.write(challenge.hex().encode() + b"\n")
        theirs, proof = (bytes.fromhex(part.decode()) for part in (await _line(reader)).split(b" "))
        handshake = Handshake(self._secret, driver=challenge, member=theirs)
        handshake.check(Side.MEMBER, proof)
        writer.write(handshake.proof(Side.DRIVER).hex().encode() + b"\n")
        return handshake.seal(Side.MEMBER), handshake.seal(Side.DRIVER)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, theirs: Seal, ours: Seal
    ) -> None:
        while True:
            async with asyncio.timeout(IDLE_AFTER):
                line = await _line(reader)
            received = self._clock.wall()
            report = read_report(theirs.open(line))
            for note in report.notes:
                log.warning("member %d (%s): %s", report.task, report.host, note)
            self._roster.report(report, self._clock.monotonic())
            orders = Orders(
                order=self._roster.order_for(report.task, report.attempt),
                reference=self._roster.reference,
                stood=self._roster.stood,
                asked=report.at,
                received=received,
                answered=self._clock.wall(),
            )
            writer.write(ours.close(encode(orders)) + b"\n")
            async with asyncio.timeout(ANSWER_WITHIN):
                await writer.drain()


class Link:
    """A member's end: reports a few times a second, connects again when the connection breaks."""

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        *,
        report: Callable[[], Report],
        obey: Callable[[Orders], None],
        clock: Clock,
    ) -> None:
        self._host, self._port = host, port
        self._secret = secret
        self._report = report
        self._obey = obey
        self._clock = clock
        self._heard = clock.monotonic()
        self._ending = asyncio.Event()
        self.skew = Skew()

    @property
    def silence(self) -> Nanos:
        """For how long nothing has been heard of the driver."""
        return Nanos(self._clock.monotonic() - self._heard)

    async def run(self, give_up_after: Nanos) -> None:
        """Report until the last report is answered, or nothing has been heard of the driver for this long."""
        failures = 0
        while self.silence < give_up_after:
            heard = self._heard
            try:
                await self._talk()
            except Broken as error:
                log.debug("the connection to the driver has ended: %r", error)
            else:
                return
            failures = 1 if self._heard != heard else failures + 1
            await asyncio.sleep(BACKOFF.delay(failures, 0) / 1e9)

    def end(self) -> None:
        """Report at once, a last time."""
        self._ending.set()

    async def _talk(self) -> None:
        async with asyncio.timeout(GREET_WITHIN):
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=MAX_LINE)
        try:
            async with asyncio.timeout(GREET_WITHIN):
                theirs, ours = await self._greet(reader, writer)
            while True:
                is_last = self._ending.is_set()
                writer.write(ours.close(encode(self._report())) + b"\n")
                async with asyncio.timeout(ANSWER_WITHIN):
                    orders = read_orders(theirs.open(await _line(reader)))
                self._heard = self._clock.monotonic()
                self.skew.add(orders.sample(self._clock.wall()))
                self._obey(orders)
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPORT_EVERY):
                        await self._ending.wait()
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Seal, Seal]:
        theirs, challenge = bytes.fromhex((await _line(reader)).decode()), os.urandom(CHALLENGE_BYTES)
        handshake = Handshake(self._secret, driver=theirs, member=challenge)
        writer.write(b"%s %s\n" % (challenge.hex().encode(), handshake.proof(Side.MEMBER).hex().encode()))
        handshake.check(Side.DRIVER, bytes.fromhex((await _line(reader)).decode()))
        return handshake.seal(Side.DRIVER), handshake.seal(Side.MEMBER)


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line, without its end."""
    return (await reader.readuntil(b"\n"))[:-1]
