"""The summary of a small shop's replay: one endpoint slower, one field renamed, an occasional 500."""

import json
import math
import random
from collections.abc import Mapping

from strandline.report.summary import (
    Curve,
    Difference,
    Endpoint,
    Example,
    Fidelity,
    Gate,
    Kind,
    Moment,
    Noise,
    Summary,
    Verdict,
)

START_US = 1_790_000_000_000_000
_SHARES = [0.01, *(i / 50 for i in range(1, 50)), *(1 - 10 ** (-2 - i / 8) for i in range(9)), 1.0]
_CENTS = [1290, 450, 8900, 2400, 1995, 310]


def shop() -> Summary:
    """The whole of it."""
    rng = random.Random(7)
    orders = _endpoint("GET /orders/{n}", 2_804, {Verdict.BODY_DIFFERS: 2_791, Verdict.SAME: 13}, 6_200, 1.04)
    search = _endpoint("GET /search", 1_950, {Verdict.SLOWER: 1_204, Verdict.SAME: 746}, 14_000, 3.4)
    checkout = _endpoint("POST /checkout", 611, {Verdict.STATUS_DIFFERS: 17, Verdict.SAME: 594}, 21_000, 1.02)
    cart = _endpoint("PUT /carts/{n}/items/{n}", 1_422, {Verdict.SAME: 1_421, Verdict.FAILED: 1}, 4_100, 0.97)
    calm = [
        _endpoint("GET /products/{n}", 5_230, {Verdict.SAME: 5_230}, 3_800, 1.01),
        _endpoint("GET /products", 2_115, {Verdict.SAME: 2_115}, 9_300, 0.99),
        _endpoint("GET /carts/{n}", 1_377, {Verdict.SAME: 1_377}, 3_300, 1.0),
        _endpoint("POST /sessions", 402, {Verdict.SAME: 390, Verdict.NO_SOURCE: 12}, 48_000, 1.0),
        _endpoint("GET /health", 120, {Verdict.SAME: 120}, 410, 1.02),
    ]
    endpoints = [orders, search, checkout, cart, *calm]
    verdicts: dict[Verdict, int] = {}
    for endpoint in endpoints:
        for verdict, number in endpoint.verdicts.items():
            verdicts[verdict] = verdicts.get(verdict, 0) + number
    return Summary(
        title="shop 2.4 against the traffic of shop 2.3",
        origin="topic replay-results on 127.0.0.1:9092",
        made_us=START_US + 95_000_000,
        first_us=START_US,
        last_us=START_US + 60_000_000,
        exchanges=sum(endpoint.count for endpoint in endpoints),
        verdicts=verdicts,
        gates=[
            Gate(rule="mismatch>1%", found="25.1%", passed=False),
            Gate(rule="lateness.p99>20ms", found="8.7 ms", passed=True),
            Gate(rule="regressed>0", found="1", passed=False),
        ],
        fidelity=Fidelity(
            late_p50_us=640,
            late_p99_us=8_700,
            late_max_us=31_200,
            drift_us_per_s=1.8,
            order_violations=0,
            connections=412,
            reuse=38.9,
        ),
        timeline=[_moment(i, rng) for i in range(120)],
        source=_curve(6_000),
        target=_curve(7_600),
        endpoints=endpoints,
        differences=[
            Difference(
                endpoint="GET /orders/{n}",
                kind=Kind.BODY,
                path="$.total",
                count=2_791,
                source="14335",
                target=None,
                example="c17-4",
            ),
            Difference(
                endpoint="GET /orders/{n}",
                kind=Kind.BODY,
                path="$.total_cents",
                count=2_791,
                source=None,
                target="14335",
                example="c17-4",
            ),
            Difference(
                endpoint="POST /checkout",
                kind=Kind.STATUS,
                path="",
                count=17,
                source="201",
                target="500",
                example="c230-11",
            ),
            Difference(
                endpoint="POST /checkout",
                kind=Kind.HEADER,
                path="content-type",
                count=17,
                source="application/json",
                target="text/plain; charset=utf-8",
                example="c230-11",
            ),
        ],
        left_out=0,
        noise=[
            Noise(endpoint="GET /orders/{n}", kind=Kind.HEADER, path="date", count=2_804, reason="rule"),
            Noise(
                endpoint="GET /orders/{n}",
                kind=Kind.BODY,
                path="$.trace",
                count=2_804,
                reason="differs between two runs against the same target",
            ),
            Noise(endpoint="GET /orders/{n}", kind=Kind.HEADER, path="content-length", count=2_804, reason="rule"),
            Noise(endpoint="POST /checkout", kind=Kind.HEADER, path="content-length", count=17, reason="rule"),
            Noise(endpoint="POST /checkout", kind=Kind.HEADER, path="date", count=611, reason="rule"),
        ],
        examples={example.id: example for example in (_order(), _checkout(), _cart())},
    )


def _endpoint(name: str, count: int, verdicts: Mapping[Verdict, int], median_us: int, slower: float) -> Endpoint:
    regressed = slower > 1.5
    return Endpoint(
        name=name,
        count=count,
        verdicts=verdicts,
        source=_curve(median_us),
        target=_curve(round(median_us * slower)),
        slower=slower,
        regressed=regressed,
        p_value=1e-9 if regressed else 0.41,
    )


def _curve(median_us: int) -> Curve:
    """A body around the median and a long tail."""
    return [(share, round(median_us * (0.55 + 0.65 * share + 0.35 * -math.log(1.001 - share)))) for share in _SHARES]


def _moment(index: int, rng: random.Random) -> Moment:
    sent = round(130 + 60 * math.sin(index / 14) + rng.uniform(-18, 18))
    late = rng.lognormvariate(6.4, 0.25)
    return Moment(
        start_us=START_US + index * 500_000,
        sent=sent,
        mismatches=round(sent * rng.uniform(0.18, 0.32)) if index > 24 else int(rng.random() < 0.1),
        late_p50_us=round(late),
        late_p99_us=round(late * rng.uniform(6, 14)),
    )


def _order() -> Example:
    items = [
        {"sku": f"SKU-{1000 + i}", "name": f"Item {i}", "quantity": 1 + i % 3, "price": cents}
        for i, cents in enumerate(_CENTS)
    ]
    source = {
        "id": 90417,
        "state": "paid",
        "items": items,
        "total": 14335,
        "currency": "EUR",
        "trace": "5e0c77f1",
    }
    target = {
        "id": 90417,
        "currency": "EUR",
        "state": "paid",
        "items": items,
        "total_cents": 14335,
        "trace": "b81f02aa",
    }
    return Example(
        id="c17-4",
        connection="c17",
        time_us=START_US + 20_100_000,
        request="GET /orders/90417 HTTP/1.1\r\nHost: shop.example\r\nAccept: application/json\r\n\r\n",
        source=answer("200 OK", json.dumps(source), date="Mon, 21 Sep 2026 14:13:40 GMT"),
        target=answer("200 OK", json.dumps(target, separators=(",", ":")), date="Mon, 21 Sep 2026 15:02:11 GMT"),
        source_us=6_140,
        target_us=6_480,
        error=None,
        verdict=Verdict.BODY_DIFFERS,
    )


def _checkout() -> Example:
    return Example(
        id="c230-11",
        connection="c230",
        time_us=START_US + 41_300_000,
        request="POST /checkout HTTP/1.1\r\nHost: shop.example\r\nContent-Type: application/json\r\n\r\n"
        '{"cart": 771, "payment": {"kind": "card", "token": "***"}, "ship_to": {"city": "Porto", "country": "PT"}}',
        source=answer("201 Created", '{"order": 90533, "state": "paid"}'),
        target=answer("500 Internal Server Error", "stock service timed out after 2000 ms", kind="text/plain"),
        source_us=20_900,
        target_us=2_004_000,
        error=None,
        verdict=Verdict.STATUS_DIFFERS,
    )


def _cart() -> Example:
    return Example(
        id="c88-2",
        connection="c88",
        time_us=START_US + 50_000_000,
        request="PUT /carts/771/items/3 HTTP/1.1\r\nHost: shop.example\r\n\r\nquantity=2&gift=no",
        source=answer("204 No Content", ""),
        target=None,
        source_us=4_000,
        target_us=None,
        error="the target closed the connection before it answered",
        verdict=Verdict.FAILED,
    )


def answer(
    status: str, body: str, *, kind: str = "application/json", date: str = "Mon, 21 Sep 2026 14:13:40 GMT"
) -> str:
    """An HTTP answer as an example holds it."""
    head = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        f"Date: {date}",
        "Server: shop",
    ]
    return "\r\n".join(head) + "\r\n\r\n" + body
