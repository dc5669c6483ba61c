"""Connections to the target: one request out and its answer in, one at a time, bytes as they are."""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from strandline.clock import Clock
from strandline.errors import OptionError
from strandline.replay.alarms import Alarms
from strandline.units import Nanos
from strandline.wire.answers import Answer, Count, Gathering

CONNECT_WITHIN = 10.0
WRITE_BUFFER = 64 << 10
"""What is given to a connection and not yet to the kernel, at most, beside one piece."""
ADDRESS = re.compile(r"[0-9.]+|.*:.*")
"""What needs not be looked up."""
CLOSES = re.compile(rb"\nconnection[ \t]*:[^\r\n]*\bclose\b", re.IGNORECASE)


P = TypeVar("P", bound=asyncio.Protocol)


class Later(NamedTuple):
    """A piece of a request that is due after its beginning."""

    due: Nanos
    load: Callable[[], bytes]


Done = Callable[[Answer | None, str | None], None]
"""Called once for each request: with its answer, with what went wrong, or with both when the answer is incomplete."""


class Target:
    """Where requests go."""

    def __init__(self, url: str, *, tls: ssl.SSLContext | None = None) -> None:
        if "@" in url:
            # Without the address, which holds a password perhaps.
            raise OptionError("a target has no user in its address; name them in --config, as auth: {basic: ...}")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise OptionError(f"target '{url}' is not like http://host:port or https://host:port") from None
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port == 0:
            raise OptionError(f"target '{url}' has no port that can be")
        is_more = parts.path.strip("/") or parts.query
        # `urlsplit` passes over line ends.
        if parts.scheme not in {"http", "https"} or not parts.hostname or is_more or not url.isprintable():
            raise OptionError(f"target '{url}' is not like http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self.host = parts.hostname
        self.is_secure = parts.scheme == "https"
        self.port = port or (443 if self.is_secure else 80)
        self.authority = parts.netloc
        """What the header Host says."""
        self._tls = (tls or ssl.create_default_context()) if self.is_secure else None
        self._looking: asyncio.Task[list[str]] | None = None

    async def connect(self, make: Callable[[], "TargetConnection"]) -> "TargetConnection":
        """A new connection, with TLS if the target wants it."""
        _, connection = await self._open(make)
        return connection

    async def try_connection(self) -> None:
        """Connect and close again; an OSError if that is not possible."""
        try:
            transport, _ = await self._open(asyncio.Protocol)
        except TimeoutError:
            raise OSError("no answer") from None
        transport.close()

    async def _open(self, make: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        loop = asyncio.get_running_loop()
        name = self.host if self.is_secure else None
        async with asyncio.timeout(CONNECT_WITHIN):
            *others, last = await self._addresses()
            for address in others:
                try:
                    return await loop.create_connection(make, address, self.port, ssl=self._tls, server_hostname=name)
                except ssl.SSLError:
                    raise
                except OSError:
                    continue
            return await loop.create_connection(make, last, self.port, ssl=self._tls, server_hostname=name)

    async def _addresses(self) -> list[str]:
        """Where the host is. All who ask while it is looked up wait for the same answer."""
        if ADDRESS.fullmatch(self.host):
            return [self.host]
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_up())
            self._looking.add_done_callback(self._looked)
        return await asyncio.shield(self._looking)

    async def _look_up(self) -> list[str]:
        found = await asyncio.get_running_loop().getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return [str(place[0]) for *_, place in found]

    def _looked(self, looking: asyncio.Task[list[str]]) -> None:
        self._looking = None
        if not looking.cancelled():
            # Those who wait are told; perhaps none of them has waited for so long.
            looking.exception()


class TargetConnection(asyncio.Protocol):
    """Sends a request in its pieces, each at its time, and gathers the answer."""

    def __init__(
        self,
        clock: Clock,
        alarms: Alarms,
        may_write: Callable[[], bool],
        park: Callable[[Callable[[], None]], None],
        count: Count | None = None,
    ) -> None:
        self._clock = clock
        self._alarms = alarms
        self._may_write = may_write
        self._park = park
        self._gathering = Gathering(count=count)
        self._transport: asyncio.Transport | None = None
        self._later: Sequence[Later] = ()
        self._next = 0
        self._is_full = False
        self._done: Done | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and self._done is None and not self._transport.is_closing()

    def send(self, first: bytes, later: Sequence[Later], method: bytes, keep: int, done: Done) -> None:
        """Send a request: its first piece now, the others when they are due."""
        assert self._transport is not None  # noqa: S101  (`is_usable` was asked)
        self._done = done
        self._gathering.expect(method, keep)
        self._later, self._next = later, 0
        self._transport.write(first)
        if later:
            self.go_on()

    def go_on(self) -> None:
        """Write what is due, unless the target is too slow; then go on when it has taken what it has."""
        while self._done is not None and self._next < len(self._later) and not self._is_full:
            piece = self._later[self._next]
            if piece.due > self._clock.monotonic():
                self._alarms.at(piece.due, self.go_on)
                return
            if not self._may_write():
                self._park(self.go_on)
                return
            if self._transport is None:
                return
            self._next += 1
            self._transport.write(piece.load())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one without being derived from it.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.go_on()

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            # Nobody asked.
            self.close()
            return
        gathering = self._gathering
        stop = gathering.feed(data, 0, self._clock.monotonic())
        if not gathering.is_http:
            self.close()
            self._finish(gathering.end(), "the answer is not HTTP/1")
        elif gathering.complete:
            answer = gathering.end()
            is_last = stop < len(data) or self._next < len(self._later) or gathering.is_opaque
            if is_last or answer is None or answer.head.startswith(b"HTTP/1.0") or CLOSES.search(answer.head):
                self.close()
            self._finish(answer, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is None:
            return
        answer = self._gathering.end()
        if answer is not None and answer.complete:
            self._finish(answer, None)
        else:
            how = "closed" if exc is None else f"broke ({exc})"
            what = "before it answered" if answer is None else "in the middle of its answer"
            self._finish(answer, f"the target {how} the connection {what}")

    def fail(self, problem: str) -> None:
        """Wait for the answer no longer."""
        done, answer = self._done, self._gathering.end()
        self.abort()
        self._done = done
        self._finish(answer, problem)

    def _finish(self, answer: Answer | None, problem: str | None) -> None:
        done, self._done = self._done, None
        self._later = ()
        self._gathering.drop()
        if done is not None:
            done(answer, problem)

    def close(self) -> None:
        """Say good-bye."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            # It was answered before it was read, and may never be: to wait for that could take for ever.
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Be gone at once; nobody is told."""
        self._done = None
        self._gathering.drop()
        if self._transport is not None:
            self._transport.abort()
