"""A shop's API: products, carts and orders. Pure: a request in, an answer out.

Clients choose the names of their carts, so that the same requests give the same answers wherever they are sent, but for
what differs by itself in every real service: times, and the name that each request gets.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit
from zlib import crc32

import msgspec

from strandline.json_decode import MalformedJson, decode

PRODUCTS = 120
PAGE = 12
KINDS = ("buoy", "anchor", "rope", "lantern", "compass", "chart", "flare", "oar")
COLOURS = ("red", "white", "blue", "grey")
QUICK_MS = 1.0
SEARCH_MS = 8.0
FAILS_ONE_IN = 9


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What the new version of the shop does differently."""

    slow_search_ms: float = 0.0
    """`GET /search` takes so much longer."""
    renames_price: bool = False
    """`price_cents` of `GET /products/{n}` is called `price`."""
    fails_orders: bool = False
    """One in nine `POST /orders` is answered by 500."""


PLANTED = Changes(slow_search_ms=40.0, renames_price=True, fails_orders=True)
NONE = Changes()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the shop says, and after how long."""

    status: int
    content: object
    after_ms: float = QUICK_MS


NOT_FOUND = Answer(status=404, content={"error": "not found"})


@dataclass
class Shop:
    """A version of the shop, and what is in its carts."""

    changes: Changes = NONE
    carts: dict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    requests: int = 0
    """How many have come."""

    def answer(self, method: str, target: str, body: bytes, now_ms: int) -> Answer:
        """The answer to a request that came at this time."""
        self.requests += 1
        url = urlsplit(target)
        parts = tuple(url.path.strip("/").split("/"))
        if method == "POST":
            return self._post(parts, body, now_ms)
        return self._get(parts, parse_qs(url.query), now_ms) if method == "GET" else NOT_FOUND

    def _get(self, parts: tuple[str, ...], asked: dict[str, list[str]], now_ms: int) -> Answer:
        match parts:
            case ("health",):
                return Answer(status=200, content={"status": "ok", "time": now_ms})
            case ("products",):
                return _page(_number(asked.get("page", ["0"])[0]))
            case ("products", number):
                return self._product(_number(number), now_ms)
            case ("search",):
                found = [_brief(n) for n in range(PRODUCTS) if asked.get("q", [""])[0] in _name(n)]
                content = {"found": found[:PAGE], "total": len(found)}
                return Answer(status=200, content=content, after_ms=SEARCH_MS + self.changes.slow_search_ms)
            case ("carts", cart):
                return Answer(status=200, content=self._cart(cart))
        return NOT_FOUND

    def _post(self, parts: tuple[str, ...], body: bytes, now_ms: int) -> Answer:
        match parts:
            case ("carts", cart, "items"):
                return self._add(cart, body)
            case ("orders",):
                return self._order(body, now_ms)
        return NOT_FOUND

    def _product(self, number: int, now_ms: int) -> Answer:
        if not 0 <= number < PRODUCTS:
            return NOT_FOUND
        price = "price" if self.changes.renames_price else "price_cents"
        content = {
            **_brief(number),
            price: _price(number),
            "stock": number * 7 % 40,
            "tags": sorted(_name(number).split()),
            "served_at": now_ms,
        }
        return Answer(status=200, content=content)

    def _add(self, cart: str, body: bytes) -> Answer:
        match _json(body):
            case {"product": int(product), "count": int(count)} if 0 <= product < PRODUCTS and count > 0:
                self.carts[cart][product] = count
                return Answer(status=201, content=self._cart(cart))
        return Answer(status=400, content={"error": "a product and a count are needed"})

    def _cart(self, cart: str) -> dict[str, object]:
        held = self.carts[cart]
        items = [{"product": number, "count": count} for number, count in sorted(held.items())]
        total = sum(_price(number) * count for number, count in held.items())
        return {"cart": cart, "items": items, "total_cents": total}

    def _order(self, body: bytes, now_ms: int) -> Answer:
        match _json(body):
            case {"cart": str(cart)} if self.carts.get(cart):
                order = crc32(cart.encode())
                if self.changes.fails_orders and order % FAILS_ONE_IN == 0:
                    return Answer(status=500, content={"error": "out of order numbers"})
                content = {"order": f"o-{order:08x}", "ordered_at": now_ms, **self._cart(cart)}
                return Answer(status=201, content=content)
        return Answer(status=400, content={"error": "a cart with something in it is needed"})


def _page(number: int) -> Answer:
    numbers = range(number * PAGE, min(PRODUCTS, (number + 1) * PAGE))
    return Answer(status=200, content={"page": number, "products": [_brief(n) for n in numbers]})


def _brief(number: int) -> dict[str, object]:
    return {"id": number, "name": _name(number)}


def _name(number: int) -> str:
    return f"{COLOURS[number // len(KINDS) % len(COLOURS)]} {KINDS[number % len(KINDS)]}"


def _price(number: int) -> int:
    return 250 + number * 137 % 9000


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text) else -1


def _json(body: bytes) -> object:
    try:
        return decode(body)
    except MalformedJson:
        return None
