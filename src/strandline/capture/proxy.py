"""The reverse proxy: listens, pairs each client with a connection to the upstream, and looks after all of them."""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable
from hashlib import blake2b
from typing import Self

from strandline.capture.config import Settings
from strandline.capture.connection import Connection
from strandline.capture.metrics import Counts
from strandline.capture.publisher import Publisher
from strandline.capture.recorder import Recorder, Reliable
from strandline.errors import CannotListen, StrandlineError

HANDSHAKE_S = 10.0
TICK_S = 0.25
"""How long something recorded waits at most before it is on its way to Kafka."""
QUIET_TICKS = 4
"""A connection that is not followed counts as idle, at the end, when nothing has come for so long."""
LEFT_S = 30.0
"""One that is not followed, and whose client sends no more, is closed when nothing has come for so long."""
TOPIC_RETRY_S = 5.0
BACKLOG = 1024
LISTEN = "--listen, or listen in the file"

log = logging.getLogger(__name__)


class Proxy:
    """Runs while it is entered; leaving it ends it in good order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counts()
        self.publisher = Publisher(
            settings.kafka,
            settings.topic,
            buffer_bytes=settings.buffer_bytes,
            # A held request would wait for every millisecond of it; where none is, it halves librdkafka's work.
            linger_ms=5 if settings.reliable is Reliable.NONE else 0,
        )
        self.publisher.when_room = self._tell_room
        self.unflushed: set[Connection] = set()
        self._connections: dict[Connection, tuple[int, int]] = {}
        self._waiting: dict[Connection, float] = {}
        self._failures_in_a_row = 0
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.is_accepting = False

    @property
    def address(self) -> str:
        """Where it listens, with the real port when 0 was asked for."""
        host, port = self._server.sockets[0].getsockname()[:2] if self._server is not None else self.settings.listen
        scheme = "http" if self.settings.front_tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def __aenter__(self) -> Self:
        host, port = self.settings.listen
        try:
            await self._make_topic()
            self._server = await self._loop.create_server(
                self._accept,
                host,
                port,
                backlog=BACKLOG,
                ssl=self.settings.front_tls,
                ssl_handshake_timeout=None if self.settings.front_tls is None else HANDSHAKE_S,
            )
        except OSError as error:
            await self.publisher.close(0)
            raise CannotListen(host, port, error, LISTEN) from error
        except BaseException:
            await self.publisher.close(0)
            raise
        self._tasks.append(self._loop.create_task(self._look_after()))
        self.is_accepting = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_accepting = False
        if self._server is not None:
            self._server.close()
        deadline = self._loop.time() + self.settings.stop_within_s
        while self._connections and self._loop.time() < deadline:
            for connection in list(self._connections):
                connection.close_when_idle()
                if not connection.is_followed and self._connections.get(connection, (0, 0))[1] >= QUIET_TICKS:
                    connection.abort("the capture ends")
            await asyncio.sleep(TICK_S / 10)
        if self._connections:
            log.warning("%d connections were not done in time and are cut", len(self._connections))
        for connection in list(self._connections):
            connection.abort("the capture ends")
        while self._connections and self._loop.time() < deadline + 1:
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = await self.publisher.close(self.settings.stop_within_s)
        if left:
            log.error("Kafka has not acknowledged the last %d records; they are lost", left)

    # What a connection asks for.

    async def connect_upstream(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """A connection to the upstream."""
        settings = self.settings
        host, port = settings.upstream
        try:
            async with asyncio.timeout(settings.connect_within_s):
                transport, _ = await self._loop.create_connection(make, host, port, ssl=settings.upstream_tls)
        except (TimeoutError, OSError, UnicodeError) as error:  # of names too, where they cannot be looked up
            self.counts.upstream_failures += 1
            self._failures_in_a_row += 1
            told = str(error) or f"no connection within {settings.connect_within_s:g} s"
            if self._failures_in_a_row == 1:
                log.error("the upstream %s:%d does not take connections: %s", host, port, told)
            raise ConnectionError(told) from error
        if self._failures_in_a_row:
            log.warning("the upstream takes connections again, after %d that it did not", self._failures_in_a_row)
            self._failures_in_a_row = 0
        return transport

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self.counts.connections += 1
        self.counts.open_connections += 1
        self._connections[connection] = (0, 0)

    def closed(self, connection: Connection) -> None:
        """A connection has ended, on both sides as far as the client is concerned."""
        if self._connections.pop(connection, None) is not None:
            self.counts.open_connections -= 1
        self.unflushed.discard(connection)
        self._waiting.pop(connection, None)

    def count_held(self, more: int) -> None:
        """So many more requests, or fewer, wait for word from Kafka."""
        before = self.counts.held_now
        self.counts.held_now += more
        if bool(before) is not bool(self.counts.held_now):
            self.publisher.listen(is_waited_for=not before)

    def wait_for_room(self, connection: Connection, within_s: float) -> None:
        """Let the connection read on once there is room for records, or after so long."""
        self._waiting[connection] = self._loop.time() + within_s

    # How it is done.

    def _accept(self) -> Connection:
        settings = self.settings
        first = self._new_id()
        recorder = None
        if is_sampled(first, settings.sample):
            self.counts.sampled += 1
            recorder = Recorder(settings.node, _ids(first, self._new_id), settings.reliable, settings.redaction)
        return Connection(self, recorder)

    def _new_id(self) -> str:
        return f"{self.settings.node}-{uuid.uuid4().hex}"

    async def _look_after(self) -> None:
        ticks_of_idleness = max(1, round(self.settings.idle_after_s / TICK_S))
        while True:
            await asyncio.sleep(TICK_S)
            unflushed, self.unflushed = self.unflushed, set()
            for connection in unflushed:
                connection.flush()
            now = self._loop.time()
            for connection, deadline in list(self._waiting.items()):
                if now > deadline:
                    del self._waiting[connection]
                    connection.resume_for_kafka()
            for connection, (events, ticks) in list(self._connections.items()):
                is_silent = connection.events == events and not connection.is_waiting
                ticks = ticks + 1 if is_silent else 0  # noqa: PLW2901
                self._connections[connection] = (connection.events, ticks)
                if ticks >= ticks_of_idleness:
                    self.counts.idle_closed += 1
                    connection.abort(f"nothing came for {self.settings.idle_after_s:g} s")
                elif connection.is_left and ticks >= LEFT_S / TICK_S:
                    # It ends once the other side has taken what is left, or as idle.
                    connection.close()

    def _tell_room(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.resume_for_kafka()

    async def _make_topic(self) -> None:
        """At once where requests will wait for Kafka; else when it is there, since nothing is to depend on it."""
        if self.settings.reliable is Reliable.NONE:
            self._tasks.append(self._loop.create_task(self._make_topic_when_possible()))
        else:
            await asyncio.to_thread(self.publisher.create_topic, self.settings.partitions)

    async def _make_topic_when_possible(self) -> None:
        for attempt in itertools.count(1):
            try:
                await asyncio.to_thread(self.publisher.create_topic, self.settings.partitions)
            except StrandlineError as error:
                if attempt == 1:
                    log.error("%s; traffic passes, and records wait as long as there is room", error)
            else:
                if attempt > 1:
                    log.warning("Kafka is there now")
                return
            await asyncio.sleep(TOPIC_RETRY_S)


def is_sampled(connection: str, rate: float) -> bool:
    """Whether a connection is among those that are recorded; the same for an id, whoever asks."""
    return int.from_bytes(blake2b(connection.encode(), digest_size=8).digest()) < rate * (1 << 64)


def _ids(first: str, new: Callable[[], str]) -> Callable[[], str]:
    ids = [first]
    return lambda: ids.pop() if ids else new()
