"""The gateway of one process: listens, lets clients in, and looks after all of them."""

import asyncio
import logging
import time
from typing import Any, Self

from strandline.errors import CannotListen
from strandline.gateway.arbiter import Arbiter
from strandline.gateway.auth import Identity, NotAllowedIn
from strandline.gateway.commons import Commons
from strandline.gateway.config import LISTEN, Settings
from strandline.gateway.connection import EXPIRED, Connection
from strandline.gateway.history import History
from strandline.gateway.hub import Hub
from strandline.gateway.messages import Counts, State
from strandline.gateway.replaying import Replaying
from strandline.gateway.secured import Secured
from strandline.gateway.session import Refused, Replay, Session
from strandline.gateway.tail import Tail
from strandline.wire.resume_token import PLACE_BYTES, Positions

BACKLOG = 1024
TICK_S = 1.0
PING_EVERY_TICKS = 20
# Clients that are pinged, or given tokens, without a pause.
AT_ONCE = 100
WATCH_S = 0.25
GOING_AWAY = 1001
ONLY = 0
# Of those that there is no room for so many wait to be told why; the others are cut off.
TOLD_AT_ONCE = 100

log = logging.getLogger(__name__)


class Gateway:
    """Runs while it is entered; leaving it ends it in good order."""

    def __init__(self, settings: Settings, commons: Commons | None = None) -> None:
        """`commons` is shared with other processes that listen on the same port."""
        self.settings = settings
        self._arbiter: Arbiter | None = None
        if commons is None:
            self._arbiter = Arbiter(settings.limits, time.monotonic)
            commons = _alone(self._arbiter, settings.limits.cold_wait_s)
        self.commons = commons
        self.limits = settings.limits
        self.signer = settings.signer
        self.door = settings.door
        self.origins = settings.origins
        self.hub = Hub()
        self.counts = Counts()
        self.tail = Tail(
            settings.kafka,
            settings.namings,
            self.hub,
            recent_bytes=settings.recent_bytes,
            max_history_s=settings.max_history_s,
        )
        self._history = History(settings.kafka, settings.namings, most_bytes=settings.history_bytes)
        self._connections: dict[Connection, None] = {}
        self._refused: set[Connection] = set()
        """Those that are about to be told so."""
        self._server: asyncio.Server | Secured | None = None
        self._lag = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Where it listens, with the real port when 0 was asked for."""
        port = self.settings.listen[1] if self._server is None else self._server.sockets[0].getsockname()[1]
        return self.settings.address(port)

    async def __aenter__(self) -> Self:
        await self.tail.start()
        await self._history.start()
        host, port = self.settings.listen
        loop = asyncio.get_running_loop()
        is_shared = self._arbiter is None
        try:
            if self.settings.tls is not None:
                secured = Secured(self, self.settings.tls)
                await secured.listen(host, port, backlog=BACKLOG, reuse_port=is_shared)
                self._server = secured
            else:
                self._server = await loop.create_server(
                    lambda: Connection(self, loop.time() + self.limits.handshake_s),
                    host,
                    port,
                    backlog=BACKLOG,
                    reuse_port=is_shared,
                )
        except OSError as error:
            await self.tail.stop()
            raise CannotListen(host, port, error, LISTEN) from error
        self._tasks = [loop.create_task(work) for work in (self._tick(), self._give_tokens(), self._watch())]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            if connection.session is not None:
                connection.session.tell_token()
            connection.close(GOING_AWAY, "the gateway ends; resume elsewhere, or in a moment")
        deadline = asyncio.get_running_loop().time() + 5
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.tail.stop()
        self._history.close()

    async def wait(self, stop: asyncio.Event) -> None:
        """Serve until somebody says stop; raises where reading has failed for good."""
        stopping = asyncio.create_task(stop.wait())
        ends: list[asyncio.Future[Any]] = [stopping, self.tail.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self.tail.failed.done():
            self.tail.failed.result()

    def not_ready(self) -> list[str]:
        """What stands in the way of serving."""
        if self._server is None:
            return ["it has not started yet"]
        return [] if self.tail.trouble is None else [self.tail.trouble]

    def state(self) -> State:
        """How it is."""
        feeds = self.hub.feeds.values()
        self.counts.delivered = self.hub.delivered
        return State(
            counts=self.counts,
            open_connections=len(self._connections),
            partitions=len(feeds),
            recent_bytes=sum(feed.recent.nbytes for feed in feeds),
            lag=self._lag,
            trouble=self.not_ready(),
            replays=None if self._arbiter is None else self._arbiter.replays(),
        )

    # What connections and sessions ask for.

    @property
    def message_bytes(self) -> int:
        """The largest message that is taken: what a client was told of all partitions it must be able to say too."""
        return max(self.limits.message_bytes, PLACE_BYTES * len(self.hub.feeds))

    def came(self, connection: Connection) -> None:
        """Look whether there is room for a connection, where that is not known yet."""
        self._connections[connection] = None
        self.counts.connections += 1

        def answer(is_admitted: bool) -> None:
            connection.admitted(is_admitted)
            if not is_admitted and connection in self._connections and not self.refuse(connection):
                connection.abort()

        if connection.is_admitted is None:
            self.commons.enter(connection.address, answer)

    def refuse(self, connection: Connection) -> bool:
        """There is no room for a connection; whether it may stay until it has been told so."""
        self.counts.refused += 1
        if len(self._refused) >= TOLD_AT_ONCE:
            return False
        self._refused.add(connection)
        return True

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        self._refused.discard(connection)
        if connection.is_admitted:
            self.commons.leave(connection.address)

    def now(self) -> int:
        """Seconds since 1970."""
        return int(time.time())

    def identify(self, token: str) -> Identity:
        """Who a token speaks of that a client shows while it is connected."""
        try:
            return self.door.read(token)
        except NotAllowedIn as error:
            raise Refused("not_allowed", str(error)) from None

    def conflates(self, channel: str) -> bool:
        """Whether slow clients get the latest of a channel only."""
        return self.settings.conflate.has(channel)

    def token(self, session: Session, positions: Positions | None = None) -> str:
        """A token for where a session is, or for other positions of its client's."""
        expires = self.now() + int(self.settings.token_valid_s)
        places = session.positions() if positions is None else positions
        return self.signer.sign(session.identity.subject, places, expires)

    async def look(self) -> None:
        """Learn which partitions there are now; raises where Kafka does not say."""
        await self.tail.look()

    async def replay(self, session: Session, replay: Replay) -> None:
        """Send a session what it missed."""
        await Replaying(
            session, replay, history=self._history, limits=self.limits, commons=self.commons, counts=self.counts
        ).run()

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            now = self.now()
            pings = ticks % PING_EVERY_TICKS == 0
            for place, connection in enumerate(list(self._connections)):
                connection.tick()
                if pings and connection in self._connections:
                    connection.ping()
                    await _let_others_on(place)
                expires = None if connection.session is None else connection.session.identity.expires
                if expires is not None and expires <= now:
                    connection.close(EXPIRED, "the token has expired")

    async def _give_tokens(self) -> None:
        while True:
            await asyncio.sleep(self.settings.token_every_s)
            for place, session in enumerate(list(self.hub.sessions)):
                if session in self.hub.sessions:
                    session.tell_token()
                await _let_others_on(place)

    async def _watch(self) -> None:
        """Say every moment how this process is."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + WATCH_S
            await asyncio.sleep(WATCH_S)
            self._lag = max(0.0, loop.time() - due)
            self.commons.send(self.state())


async def _let_others_on(place: int) -> None:
    """For whoever goes through all clients: what comes from Kafka is not to wait until all are done."""
    if place % AT_ONCE == AT_ONCE - 1:
        await asyncio.sleep(0)


def _alone(arbiter: Arbiter, wait_s: float) -> Commons:
    """For a process that shares nothing with others."""
    commons = Commons(lambda message: arbiter.heard(ONLY, message, commons.heard), wait_s)
    return commons
