"""Where requests go: the address of the target, and connections to it."""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

from strandline.errors import OptionError
from strandline.replay.connection import TargetConnection

CONNECT_WITHIN = 10.0
ADDRESS = re.compile(r"[0-9.]+|.*:.*")
"""What needs not be looked up."""


P = TypeVar("P", bound=asyncio.Protocol)


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
        try:
            # As it is looked up.
            self.host.encode("idna")
        except UnicodeError:
            raise OptionError(f"target '{url}' has no host that can be") from None
        self.is_secure = parts.scheme == "https"
        self.port = port or (443 if self.is_secure else 80)
        self.authority = parts.netloc
        """What the header Host says."""
        self._tls = (tls or ssl.create_default_context()) if self.is_secure else None
        self._looking: asyncio.Task[list[str]] | None = None

    async def connect(self, make: Callable[[], TargetConnection]) -> TargetConnection:
        """A new connection, with TLS if the target wants it."""
        _, connection = await self._open(make)
        return connection

    async def reach(
        self,
        make: Callable[[], TargetConnection],
        made: Callable[[TargetConnection], None],
        refused: Callable[[OSError | TimeoutError], None],
    ) -> None:
        """The same, told to who asked for it."""
        try:
            connection = await self.connect(make)
        except (OSError, TimeoutError) as error:
            refused(error)
        else:
            made(connection)

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
        until = loop.time() + CONNECT_WITHIN
        async with asyncio.timeout_at(until):
            *others, last = await self._addresses()
            for left, address in zip(range(len(others) + 1, 1, -1), others, strict=True):
                try:
                    # A share of the time: one that says nothing is not to keep the others from being tried.
                    async with asyncio.timeout((until - loop.time()) / left):
                        return await loop.create_connection(
                            make, address, self.port, ssl=self._tls, server_hostname=name
                        )
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
