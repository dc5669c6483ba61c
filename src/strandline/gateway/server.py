"""The gateway of one process: listens, lets clients in, and looks after all of them."""

import asyncio
import logging
import time
from collections import Counter
from typing import Any, Self

from strandline.errors import StrandlineError
from strandline.gateway.auth import NotAllowedIn
from strandline.gateway.config import Settings
from strandline.gateway.connection import EXPIRED, Connection
from strandline.gateway.history import History
from strandline.gateway.hub import Hub
from strandline.gateway.limits import Turns
from strandline.gateway.metrics import Counts
from strandline.gateway.replaying import Replaying
from strandline.gateway.session import Identity, Refused, Replay, Session
from strandline.gateway.tail import Tail
from strandline.kafka.cluster import Cluster

BACKLOG = 1024
TICK_S = 1.0
GOING_AWAY = 1001

log = logging.getLogger(__name__)


class Gateway:
    """Runs while it is entered; leaving it ends it in good order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
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
        self._asked = Cluster(settings.kafka)
        self._history = History(self._asked, most_bytes=settings.history_bytes)
        self._cold = Turns(settings.limits.cold_every_s)
        self._connections: dict[Connection, None] = {}
        self._addresses: Counter[str] = Counter()
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Where it listens, with the real port when 0 was asked for."""
        host, port = self._server.sockets[0].getsockname()[:2] if self._server is not None else self.settings.listen
        scheme = "ws" if self.settings.tls is None else "wss"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def __aenter__(self) -> Self:
        await self.tail.start()
        await self._asked.partitions(self.settings.namings)
        host, port = self.settings.listen
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, backlog=BACKLOG, ssl=self.settings.tls, reuse_port=True
            )
        except OSError as error:
            await self.tail.stop()
            raise StrandlineError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._tasks = [loop.create_task(self._tick()), loop.create_task(self._give_tokens())]
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
        self._asked.close()

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
        return [] if self.tail.trouble is None else [self.tail.trouble]

    # What connections and sessions ask for.

    def admit(self, connection: Connection) -> bool:
        """Take a connection in, where there is room."""
        self._connections[connection] = None
        self._addresses[connection.address] += 1
        self.counts.connections += 1
        is_admitted = (
            len(self._connections) <= self.limits.connections
            and self._addresses[connection.address] <= self.limits.connections_per_address
        )
        self.counts.refused += not is_admitted
        return is_admitted

    def gone(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        self._addresses[connection.address] -= 1
        if not self._addresses[connection.address]:
            del self._addresses[connection.address]

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

    def token(self, session: Session) -> str:
        """A token for where a session is."""
        expires = self.now() + int(self.settings.token_valid_s)
        return self.signer.sign(session.identity.subject, session.positions(), expires)

    async def replay(self, session: Session, replay: Replay) -> None:
        """Send a session what it missed."""
        await Replaying(
            session, replay, history=self._history, limits=self.limits, cold=self._cold, counts=self.counts
        ).run()

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            ticks += 1
            now = self.now()
            pings = ticks % max(1, round(self.limits.ping_every_s / TICK_S)) == 0
            for connection in list(self._connections):
                connection.tick()
                if pings:
                    connection.ping()
                expires = None if connection.session is None else connection.session.identity.expires
                if expires is not None and expires <= now:
                    connection.close(EXPIRED, "the token has expired")

    async def _give_tokens(self) -> None:
        while True:
            await asyncio.sleep(self.settings.token_every_s)
            for session in list(self.hub.sessions):
                session.tell_token()
