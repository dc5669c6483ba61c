"""Customers of the shop: each looks around on a connection of its own, fills a cart, and perhaps orders it."""

import asyncio
import random
from collections.abc import Iterator

import msgspec

from strandline.demo.serving import LOOPBACK
from strandline.demo.shop import KINDS, PAGE, PRODUCTS

CUSTOMERS_PER_S = 8.0
THINK_S = 0.35
"""On average, between an answer and the next request."""
ANSWER_WITHIN_S = 30.0


async def visit(port: int, seconds: float, chance: random.Random) -> int:
    """Let customers come at random for so long, and all of them finish; how many requests they made."""
    loop = asyncio.get_running_loop()
    visits: list[asyncio.Task[int]] = []
    end = loop.time() + seconds
    async with asyncio.TaskGroup() as tasks:
        while loop.time() < end:
            # Each has chances of its own, so that nothing depends on who is faster.
            wanted = list(_wishes(f"cart-{len(visits)}", random.Random(chance.random())))  # noqa: S311
            visits.append(tasks.create_task(_customer(port, wanted, random.Random(chance.random()))))  # noqa: S311
            await asyncio.sleep(chance.expovariate(CUSTOMERS_PER_S))
    return sum(task.result() for task in visits)


def _wishes(cart: str, chance: random.Random) -> Iterator[tuple[str, str, object]]:
    """What a customer asks for, one after the other: method, path and JSON body."""
    yield "GET", f"/products?page={chance.randrange(PRODUCTS // PAGE)}", None
    if chance.random() < 0.1:
        yield "GET", "/health", None
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.5:
            yield "GET", f"/search?q={chance.choice(KINDS)}", None
        product = min(PRODUCTS - 1, int(chance.paretovariate(0.6)))
        yield "GET", f"/products/{product}", None
        if chance.random() < 0.6:
            yield "POST", f"/carts/{cart}/items", {"product": product, "count": chance.randrange(1, 4)}
    yield "GET", f"/carts/{cart}", None
    if chance.random() < 0.7:
        yield "POST", "/orders", {"cart": cart}
    if chance.random() < 0.05:
        yield "GET", f"/products/{PRODUCTS + 1}", None


async def _customer(port: int, wanted: list[tuple[str, str, object]], chance: random.Random) -> int:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        for method, target, content in wanted:
            body = b"" if content is None else msgspec.json.encode(content)
            head = f"{method} {target} HTTP/1.1\r\nHost: shop.example\r\nAccept: application/json\r\n"
            if body:
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}\r\n".encode() + body)
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await _skip_answer(reader)
            await asyncio.sleep(chance.expovariate(1 / THINK_S))
    finally:
        writer.close()
    return len(wanted)


async def _skip_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    await reader.readexactly(length)
