"""The demo's shop: two copies of it answer the same requests alike, and a changed one differs where it was changed."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any, cast

from strandline.demo.customers import visit
from strandline.demo.serving import serving
from strandline.demo.shop import FAILS_ONE_IN, NONE, PLANTED, PRODUCTS, Answer, Changes, Shop

SEARCH = ("GET", "/search?q=buoy", b"")
PRODUCT = ("GET", "/products/3", b"")
ADD = ("POST", "/carts/{cart}/items", b'{"product": 3, "count": 2}')
ORDER = ("POST", "/orders", b'{"cart": "{cart}"}')


def answers(changes: Changes, carts: int = 200) -> Iterator[tuple[str, Answer]]:
    shop = Shop(changes)
    for cart in map(str, range(carts)):
        for method, path, body in (SEARCH, PRODUCT, ADD, ORDER):
            filled = body.replace(b"{cart}", cart.encode())
            yield path, shop.answer(method, path.replace("{cart}", cart), filled, 1_000)


def test_two_copies_answer_alike() -> None:
    assert list(answers(NONE)) == list(answers(NONE))


def test_a_changed_one_differs_where_it_was_changed_and_nowhere_else() -> None:
    pairs = [(path, old, new) for (path, old), (_, new) in zip(answers(NONE), answers(PLANTED), strict=True)]
    for path, old, new in pairs:
        match path:
            case "/search?q=buoy":
                assert new.content == old.content
                assert new.after_ms == old.after_ms + PLANTED.slow_search_ms
            case "/products/3":
                before, after = cast("dict[str, Any]", old.content), cast("dict[str, Any]", new.content)
                assert after.pop("price") == before.pop("price_cents")
                assert after == before
            case "/carts/{cart}/items":
                assert new == old
    failed = [new.status for path, _, new in pairs if path == "/orders"].count(500)
    assert 0 < failed < 3 * 200 / FAILS_ONE_IN


def test_what_is_not_there_or_makes_no_sense_is_refused() -> None:
    shop = Shop()
    assert shop.answer("GET", f"/products/{PRODUCTS}", b"", 0).status == 404
    assert shop.answer("GET", "/products/%00", b"", 0).status == 404
    assert shop.answer("DELETE", "/products/1", b"", 0).status == 404
    assert shop.answer("POST", "/carts/a/items", b"\xff", 0).status == 400
    assert shop.answer("POST", "/orders", b'{"cart": "empty"}', 0).status == 400


def test_customers_get_an_answer_to_every_request() -> None:
    async def main() -> tuple[int, int]:
        shop = Shop()
        async with serving(shop) as port:
            return await visit(port, 0.5, random.Random(1)), len(shop.carts)

    made, carts = asyncio.run(main())
    assert made > 0
    assert carts > 0
