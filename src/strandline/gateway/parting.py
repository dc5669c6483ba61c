"""How a client leaves a connection: in good order, however much of what came it has not read."""

import asyncio
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConcurrencyError, ConnectionClosed


async def part(connection: ClientConnection) -> None:
    """Close, within the connection's own time-out for that.

    The library stops reading while messages wait to be taken, and the other side's close comes behind them: so they are
    taken meanwhile, and passed over. Where somebody else is taking them that is done already.
    """
    closing = asyncio.create_task(connection.close())
    try:
        with suppress(ConnectionClosed, ConcurrencyError):
            while True:
                await connection.recv()
        await closing
    finally:
        closing.cancel()
