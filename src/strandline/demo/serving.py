"""The shop behind a socket: HTTP/1.1 with keep-alive, as little of it as its customers and a replay need."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

import msgspec

from strandline.demo.shop import Shop

LOOPBACK = "127.0.0.1"
IDLE_S = 120.0
MAX_BODY = 64 << 10


@asynccontextmanager
async def serving(shop: Shop) -> AsyncIterator[int]:
    """The shop on a free port of this machine, which is given."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        tasks.add(task)
        try:
            async with asyncio.timeout(None) as limit:
                while await _exchange(shop, reader, writer, limit):
                    pass
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def _exchange(
    shop: Shop, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout
) -> bool:
    """Answer one request; whether there may be another."""
    limit.reschedule(asyncio.get_running_loop().time() + IDLE_S)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head[:-4].split("\r\n")
    method, target, _ = line.split(" ", 2)
    lengths = [field.partition(":")[2] for field in fields if field.lower().startswith("content-length:")]
    length = int(lengths[0]) if lengths else 0
    if not 0 <= length <= MAX_BODY:
        return False
    body = await reader.readexactly(length)
    answer = shop.answer(method, target, body, time.time_ns() // 1_000_000)
    await asyncio.sleep(answer.after_ms / 1e3)
    content = msgspec.json.encode(answer.content)
    writer.write(
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: application/json\r\nX-Request-Id: {uuid.uuid4()}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content
    )
    await writer.drain()
    return True
