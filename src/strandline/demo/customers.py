"""Customers of the shop: each looks around on a connection of its own, fills a cart, and perhaps orders it."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from strandline.demo.serving import LOOPBACK
from strandline.demo.shop import KINDS, PAGE, PRODUCTS
from strandline.errors import StrandlineError
from strandline.stalls import StallDetector, unless_stalled

CUSTOMERS_PER_S = 8.0
THINK_S = 0.35
"""On average, between an answer and the next request."""
SILENCE_S = 60.0
"""So long may all of them wait without any answer."""
REMEDY = "the service or Kafka does not get on: look at what was said above, make room on the machine, and try again"


@dataclass
class _Answers:
    count: int = 0


async def visit(port: int, seconds: float, chance: random.Random, *, silence_s: float = SILENCE_S) -> int:
    """Let customers come at random for so long, and all of them finish; how many requests they made."""
    answers = _Answers()
    detector = StallDetector(silence_s, lambda: answers.count)
    try:
        await unless_stalled(_visits(port, seconds, chance, answers), detector, "a visit of the shop", REMEDY)
    except ExceptionGroup as failures:
        problem = failures.exceptions[0]
        if not isinstance(problem, OSError | EOFError | ValueError):
            raise
        raise StrandlineError(f"a customer of the shop got no answer ({problem}); {REMEDY}") from problem
    return answers.count


async def _visits(port: int, seconds: float, chance: random.Random, answers: _Answers) -> None:
    loop = asyncio.get_running_loop()
    end, visits = loop.time() + seconds, 0
    async with asyncio.TaskGroup() as tasks:
        while loop.time() < end:
            # Each has chances of its own, so that nothing depends on who is faster.
            wanted = list(_wishes(f"cart-{visits}", random.Random(chance.random())))  # noqa: S311
            tasks.create_task(_customer(port, wanted, random.Random(chance.random()), answers))  # noqa: S311
            visits += 1
            await asyncio.sleep(chance.expovariate(CUSTOMERS_PER_S))


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


async def _customer(port: int, wanted: list[tuple[str, str, object]], chance: random.Random, answers: _Answers) -> None:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        for method, target, content in wanted:
            body = b"" if content is None else msgspec.json.encode(content)
            head = f"{method} {target} HTTP/1.1\r\nHost: shop.example\r\nAccept: application/json\r\n"
            if body:
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}\r\n".encode() + body)
            await _skip_answer(reader)
            answers.count += 1
            await asyncio.sleep(chance.expovariate(1 / THINK_S))
    finally:
        writer.close()


async def _skip_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])
    await reader.readexactly(length)
