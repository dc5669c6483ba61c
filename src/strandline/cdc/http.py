"""HTTP/1.1 connections to one endpoint, kept open: one request and its answer at a time on each."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import cast

from strandline.clock import Clock, SystemClock
from strandline.units import Nanos, nanos
from strandline.wire.answers import Answer
from strandline.wire.gathering import Gathering

MAX_ANSWER = 4 << 20
"""An answer to 500 records has about 60 kB."""
IDLE_AT_MOST = nanos(timedelta(seconds=4))
"""A server closes what is idle; to send on such a connection costs an attempt."""


class Connections:
    """As many as are in use at once."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, *, clock: Clock | None = None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._clock = clock or SystemClock()
        self._idle: deque[tuple[_Connection, Nanos]] = deque()

    async def ask(self, head: bytes, body: bytes, within: timedelta, may_send: Callable[[], object]) -> Answer:
        """Send a POST and wait for its answer; an OSError where there is none, or none in time.

        `may_send` is called when nothing is left but to send, and raises where that may not be.
        """
        async with asyncio.timeout(within.total_seconds()):
            connection = self._reuse() or await self._open()
            try:
                may_send()
                answer = await connection.ask(head, body)
            except BaseException:
                connection.abort()
                raise
        if connection.is_usable:
            self._idle.append((connection, self._clock.monotonic()))
        return answer

    def _reuse(self) -> "_Connection | None":
        now = self._clock.monotonic()
        while self._idle:
            connection, since = self._idle.pop()
            if connection.is_usable and now - since <= IDLE_AT_MOST:
                return connection
            connection.abort()
        return None

    async def _open(self) -> "_Connection":
        name = self._host if self._tls else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls, server_hostname=name
        )
        return connection

    def close(self) -> None:
        """Close those that are idle."""
        while self._idle:
            self._idle.pop()[0].abort()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._gathering = Gathering()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, head: bytes, body: bytes) -> Answer:
        if self._transport is None:
            raise ConnectionResetError("the connection was closed")
        self._gathering.expect(b"POST", MAX_ANSWER)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines([head, body])
        return await self._answer

    def abort(self) -> None:
        """Close it at once; what is not sent yet is not sent."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one without being derived from it.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        gathering = self._gathering
        if self._answer is None or self._answer.done():
            # Nobody asked, or nobody waits any more.
            self.abort()
            return
        stop = gathering.feed(data, 0, Nanos(0))
        if not gathering.is_http:
            self.abort()
            self._answer.set_exception(ConnectionError("the answer is not HTTP/1"))
        elif gathering.complete:
            answer = gathering.end()
            assert answer is not None  # noqa: S101  (a complete one has a head)
            if stop < len(data) or b"connection: close" in answer.head.lower() or answer.head.startswith(b"HTTP/1.0"):
                self.abort()
            self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            answer = self._gathering.end()
            if answer is not None and answer.complete:
                self._answer.set_result(answer)
            else:
                how = "closed" if exc is None else f"broken ({exc})"
                self._answer.set_exception(ConnectionResetError(f"the connection was {how} before the answer"))
