"""A client's own connection to its broker: opened, signed in over, and tried again where nobody takes it."""

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Final

from strandline.core.retry import Attempts, Backoff, Failure, GiveUp, Policy, decide
from strandline.errors import BrokerUnreachable
from strandline.kafka.connection import sign_in
from strandline.proxy.backend import Backend, connect
from strandline.proxy.exchange import Here
from strandline.units import Nanos

# A broker that is started again refuses connections for a moment.
CONNECTING: Final = Policy(
    backoff={Failure.TRANSIENT: Backoff(first=Nanos(100_000_000), ceiling=Nanos(1_000_000_000))}, until=Attempts(4)
)

Made = Callable[[socket.socket, str], Backend]
"""What a socket to an address becomes."""


async def dial(here: Here, made: Made) -> Backend:
    """Connect to the broker of a connection. One that takes the connection and does not answer is not tried again."""
    loop = asyncio.get_running_loop()
    began, attempt = loop.time(), 1
    while True:
        try:
            return await _once(here, made)
        except BrokerUnreachable:
            took = loop.time() - began
            draw = random.random()  # noqa: S311  (spreads attempts, keeps no secret)
            what = decide(CONNECTING, Failure.TRANSIENT, attempt=attempt, elapsed=Nanos(int(took * 1e9)), draw=draw)
            if isinstance(what, GiveUp) or took >= here.cluster.limits.connect_s:
                raise
            await asyncio.sleep(what.delay / 1e9)
            attempt += 1


async def _once(here: Here, made: Made) -> Backend:
    cluster = here.cluster
    host, port = cluster.where(here.node)
    sock = await connect((host, port), cluster.security, within=cluster.limits.connect_s)
    backend = made(sock, f"{host}:{port}")
    if cluster.security.sasl is not None:
        try:
            # The type of an answer follows from its request here.
            await sign_in(
                lambda request, _: backend.ask(request, None, within=cluster.limits.connect_s),
                backend.address,
                cluster.security.sasl,
            )
        except BaseException:
            backend.close()
            raise
    return backend
