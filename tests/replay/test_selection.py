"""Requests that somebody chose, sent without a log: in the order of their connection, due by one reference."""

import asyncio
import json
import re
import time
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.replay.selection import Chosen, Sending, head_of, request_head, send_chosen
from strandline.replay.target import Target
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.head import Head, request_line
from strandline.wire.transactions import ConnectionKey
from tests.replay.support import BEGIN, MS, serving, until
from tests.support import TIMEOUT

OK = Answer(200, b"HTTP/1.1 200 OK\r\n\r\n", b"ok", 2, None, True, Nanos(0), Nanos(0))


def chosen(number: int, connection: str, answer: Answer | None = OK) -> Chosen:
    body = b"x" * number
    return Chosen(
        key=ConnectionKey("node", connection),
        at=Nanos(BEGIN + number * 10 * MS),
        method=b"POST",
        head=head_of(f"POST /{number} HTTP/1.1", {"host": ["a"], "x-many": ["1", "2"]}, body),
        body=body,
        answer=answer,
        partition=3,
        offset=100 + number,
        ordinal=2,
    )


async def sent(batches: list[list[Chosen]], url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    sending = Sending(
        target=Target(url), reference=Nanos(BEGIN), begin=Nanos(time.time_ns() + 50 * MS), speed=Fraction(2)
    )
    async with asyncio.timeout(TIMEOUT):
        await send_chosen(iter(batches), sending, lambda result: found.append(json.loads(result)))
    return found


def test_requests_of_a_connection_arrive_in_order_on_one_connection_named_and_with_a_result_each() -> None:
    async def main() -> None:
        async with serving() as server:
            rows = [chosen(number, f"c{number % 2}", OK if number % 3 else None) for number in range(10)]
            results = await sent([rows[:4], rows[4:]], f"http://127.0.0.1:{server.port}")
            by_connection: dict[int, list[str]] = {}
            for arrival in server.arrivals:
                by_connection.setdefault(arrival.connection, []).append(arrival.path)
            assert sorted(by_connection.values()) == [[f"/{n}" for n in range(start, 10, 2)] for start in (0, 1)]
            assert {arrival.mark for arrival in server.arrivals} == {f"3-{100 + n}.2" for n in range(10)}
            await until(lambda: not server.open, "no connection is left")
            assert {(result["id"], result["verdict"]) for result in results} == {
                (f"3-{100 + n}.2", "match" if n % 3 else "no_source") for n in range(10)
            }
            first = min(result["due_us"] for result in results)
            for result in results:
                assert result["due_us"] - first == (result["source_time_us"] - BEGIN // 1000) // 2
                assert result["lateness_us"] >= 0

    asyncio.run(main())


def test_a_head_is_framed_by_its_body_and_holds_no_line_end() -> None:
    headers = {"transfer-encoding": ["chunked"], "content-length": ["9"], "a": ["b"]}
    assert head_of("PUT / HTTP/1.1", headers, b"") == b"PUT / HTTP/1.1\r\na: b\r\ncontent-length: 0\r\n\r\n"
    assert head_of("GET / HTTP/1.1", headers, b"") == b"GET / HTTP/1.1\r\na: b\r\n\r\n"
    assert head_of("GET / HTTP/1.1", {"Content-Length": ["9"]}, b"x").count(b"ength") == 1
    with pytest.raises(ValueError, match="without line ends"):
        head_of("GET / HTTP/1.1", {"a": ["b\r\nc: d"]}, b"")


@given(
    st.text(max_size=3), st.text(max_size=3), st.none() | st.text(max_size=3), st.text(max_size=3), st.text(max_size=3)
)
def test_a_request_is_read_as_what_it_is_or_refused(
    method: str, path: str, query: str | None, name: str, value: str
) -> None:
    try:
        head = request_head(method, path, query, {f"x{name}": [value]}, b"")
    except ValueError:
        words = (method, path, query or "-", f"x{name}", value.replace(" ", ""))
        assert not (path and all(re.fullmatch(r"[a-z/%]*", word) for word in words) and method)
    else:
        assert head.decode("latin-1").split("\r\n")[0].split(" ")[0] == method
        assert request_line(head) == (method, path if query is None else f"{path}?{query}", "HTTP/1.1")
        assert [key for key, _ in Head(head).lines] == [f"x{name}".encode("latin-1")]
