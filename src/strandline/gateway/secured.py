"""Listens for clients that speak TLS, and counts them from the moment that they connect.

The event loop's own servers tell of a connection when its handshake is over: until then one that never begins it would
take a place that no limit knows of.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from strandline.core.address import belongs_to
from strandline.gateway.connection import Connection

if TYPE_CHECKING:
    from strandline.gateway.server import Gateway

# After a connection that could not be taken, such as for want of files.
PAUSE_S = 0.2

log = logging.getLogger(__name__)


class Secured:
    """What listens, until it is closed."""

    def __init__(self, gateway: "Gateway", context: ssl.SSLContext) -> None:
        self._gateway = gateway
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self.sockets: list[socket.socket] = []

    async def listen(self, host: str, port: int, *, backlog: int, reuse_port: bool) -> None:
        """Listen on all addresses of a host."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, proto, _, place in dict.fromkeys(found):
                listener = socket.socket(family, kind, proto)
                self.sockets.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if reuse_port:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.setblocking(False)
                listener.bind(place)
                listener.listen(backlog)
        except OSError:
            for listener in self.sockets:
                listener.close()
            raise
        for listener in self.sockets:
            self._run(self._accept(listener))

    def close(self) -> None:
        """Listen no more; handshakes that are under way are given up."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # Closed when the event loop waits for it no more, and not before.
        with listener:
            while True:
                try:
                    came, place = await loop.sock_accept(listener)
                except OSError as error:
                    log.warning("a connection could not be taken: %s", error)
                    await asyncio.sleep(PAUSE_S)
                else:
                    self._came(came, belongs_to(str(place[0])))

    def _came(self, came: socket.socket, address: str) -> None:
        connection = Connection(self._gateway, asyncio.get_running_loop().time() + self._gateway.limits.handshake_s)
        connection.address = address

        def answer(is_admitted: bool) -> None:
            connection.is_admitted = is_admitted
            if is_admitted or self._gateway.refuse(connection):
                self._run(self._shake_hands(came, connection))
            else:
                came.close()

        self._gateway.commons.enter(address, answer)

    async def _shake_hands(self, came: socket.socket, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                came,
                ssl=self._context,
                ssl_handshake_timeout=max(0.001, connection.handshake_ends - loop.time()),
            )
        except OSError as error:
            log.debug("no handshake with %s: %s", connection.address, error)
        finally:
            if not connection.is_made:
                came.close()
                self._gateway.gone(connection)
