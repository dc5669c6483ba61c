"""The readers of captured traffic: every byte and time where it belongs, every fault with its place."""

import base64
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.capture.imports import gor as gor_module
from strandline.capture.imports import order
from strandline.capture.imports.gor import SEPARATOR, Gor, blocks
from strandline.capture.imports.har import read_har
from strandline.capture.imports.items import Broken, Item, LeftOut, Record, parse, shifted
from strandline.capture.imports.lines import MOST_LINE, read_lines
from strandline.capture.imports.order import Gap, Mending, Numbers, in_order
from strandline.errors import StrandlineError
from strandline.units import Nanos
from strandline.wire.traffic import Recording, when
from strandline.wire.traffic_pb2 import TrafficStream
from tests.wire.messages import Message, requests, responses

NOON = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * 10**9
MS = 10**6
MULTIPART = b"""--zz\r
Content-Disposition: form-data; name="f"; filename="x.txt"\r
Content-Type: text/plain\r
\r
hi\r
--zz--\r
"""


def records(items: Iterable[Item]) -> list[Record]:
    """All of them, and nothing broken among them."""
    found = list(items)
    assert not [item for item in found if isinstance(item, Broken)]
    return [item for item in found if isinstance(item, Record)]


def seen(items: Iterable[Item]) -> dict[str, list[tuple[str, int, bytes]]]:
    """By connection what was seen on it: kind, time, bytes."""
    found: dict[str, list[tuple[str, int, bytes]]] = {}
    for record in records(items):
        for observation in TrafficStream.FromString(record.value).subStream:
            kind = str(observation.WhichOneof("Capture"))
            data = getattr(getattr(observation, kind), "data", b"")
            found.setdefault(record.connection.name, []).append((kind, when(observation), data))
    return found


def bytes_of(events: list[tuple[str, int, bytes]], kind: str) -> bytes:
    return b"".join(data for name, _, data in events if name.startswith(kind))


# GoReplay


def block(kind: int, id_: str, at: int, payload: bytes, latency: int | None = None) -> bytes:
    tail = "" if latency is None else f" {latency}"
    return f"{kind} {id_} {at}{tail}\n".encode() + payload + SEPARATOR


def read_gor(data: bytes) -> Iterator[Item]:
    gor = Gor("node")
    yield from gor.read(io.BytesIO(data))
    yield from gor.end()


@given(st.lists(st.tuples(requests(), responses()), max_size=3))
def test_the_bytes_of_a_gor_file_are_the_bytes_of_its_connections(exchanges: list[tuple[Message, Message]]) -> None:
    data = b""
    for number, (request, response) in enumerate(exchanges):
        data += block(1, f"a{number}", NOON + number, request.wire)
        data += block(2, f"a{number}", NOON + number + 5, response.wire, 5)
    found = seen(read_gor(data))
    assert len(found) == len(exchanges)
    for number, (request, response) in enumerate(exchanges):
        events = found[f"a{number}-{number + 1}"]
        assert bytes_of(events, "read") == request.wire
        assert bytes_of(events, "write") == response.wire
        assert [at for kind, at, _ in events if kind in {"read", "write"}] == [NOON + number, NOON + number + 5]
        assert [kind for kind, _, _ in events][-1] == "close"


@pytest.mark.parametrize(("time", "latency"), [(NOON + 7, None), (NOON + 7, 3), (NOON, 7), (7, None)])
def test_a_response_comes_at_its_time_or_after_its_latency(time: int, latency: int | None) -> None:
    data = block(1, "a", NOON, b"GET / HTTP/1.1\r\n\r\n") + block(2, "a", time, b"HTTP/1.1 204 x\r\n\r\n", latency)
    (events,) = seen(read_gor(data)).values()
    assert [at - NOON for _, at, _ in events] == [0, 0, 0, 7, 7]


def test_the_end_of_a_request_tells_the_lengths_of_its_first_line_and_of_the_rest_of_its_head() -> None:
    post = b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi"
    (exchange,) = seen(har(entry())).values()
    get = bytes_of(exchange, "read")
    for items, head in ((read_gor(block(1, "a", NOON, post)), post[:-2]), (har(entry()), get)):
        streams = [TrafficStream.FromString(record.value) for record in records(items)]
        found = [o.endOfMessageIndicator for s in streams for o in s.subStream if o.HasField("endOfMessageIndicator")]
        line = head.index(b"\n") + 1
        assert [(mark.firstLineByteLength, mark.headersByteLength) for mark in found] == [(line, len(head) - line)]


def test_what_gor_has_besides_is_left_out_and_counted() -> None:
    get = b"GET / HTTP/1.1\r\n\r\n"
    answer = b"HTTP/1.1 204 x\r\n\r\n"
    data = block(1, "a", NOON, get) + block(3, "a", NOON, answer) + block(2, "b", NOON, answer)
    items = list(read_gor(data))
    assert [item for item in items if isinstance(item, LeftOut)] == [
        LeftOut("response to a replay"),
        LeftOut("response without its request"),
        LeftOut("response that the file does not have"),
    ]
    assert bytes_of(seen(items)["a-1"], "read") == get


def test_a_response_may_be_in_the_next_file() -> None:
    gor = Gor("node")
    items = list(gor.read(io.BytesIO(block(1, "a", NOON, b"GET / HTTP/1.1\r\n\r\n"))))
    items += gor.read(io.BytesIO(block(2, "a", NOON + 1, b"HTTP/1.1 204 x\r\n\r\n")))
    assert not list(gor.end())
    assert [record.number for record in records(items)] == [1, 2]


def test_a_broken_block_is_named_and_the_next_one_is_read() -> None:
    get = b"GET / HTTP/1.1\r\n\r\n"
    data = (
        block(1, "a", NOON, get)
        + block(7, "b", NOON, get)
        + block(1, "c", NOON, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nshort")
        + block(1, "d", NOON, b"\x16\x03\x01 not HTTP\n\n")
        + block(1, "a", NOON, get)
        + block(1, "e", NOON, get)
    )
    items = list(read_gor(data))
    assert [item for item in items if isinstance(item, Broken)] == [
        Broken("block 2", "does not begin with a line such as '1 ID TIME'"),
        Broken("block 3", "request 'c': it is not complete"),
        Broken("block 4", "request 'd': no HTTP/1 request line"),
        Broken("block 5", "request 'a' comes twice"),
    ]
    assert {r.connection.name[0] for r in items if isinstance(r, Record)} == {"a", "e"}


@given(st.lists(st.binary(max_size=40).filter(lambda data: SEPARATOR not in data + SEPARATOR[:-1]), min_size=1))
def test_blocks_are_what_lies_between_separators(parts: list[bytes]) -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(7)

    assert list(blocks(Dribble(b"".join(part + SEPARATOR for part in parts)))) == parts


def test_a_block_that_is_too_large_is_passed_over_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gor_module, "MOST_BLOCK", 1000)
    monkeypatch.setattr(gor_module, "READ", 100)
    assert list(blocks(io.BytesIO(b"a" + SEPARATOR + b"b" * 5000 + SEPARATOR + b"c" + SEPARATOR))) == [b"a", None, b"c"]


def test_requests_that_are_never_answered_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gor_module, "MOST_OPEN", 3)
    data = b"".join(block(1, f"a{n}", NOON + n, b"GET / HTTP/1.1\r\n\r\n") for n in range(10))
    gor = Gor("node")
    assert sum(record.number == 2 for record in records(gor.read(io.BytesIO(data)))) == 7


# Exports of opensearch-migrations


def stream(connection: str = "c", chunks: int = 1) -> list[bytes]:
    recording = Recording("n", connection)
    found = []
    for number in range(chunks):
        recording.read(Nanos(NOON + number), b"x%d" % number)
        found += recording.take(last=number == chunks - 1)
    return found


@pytest.mark.parametrize("key", [b"", b"c|", b"c.1|"])
def test_exported_records_keep_their_bytes(key: bytes) -> None:
    values = stream(chunks=3)
    data = b"\n".join(key + base64.b64encode(value) for value in values) + b"\n\n"
    found = records(read_lines(io.BytesIO(data)))
    assert [record.value for record in found] == values
    assert [(record.connection.name, record.number) for record in found] == [("c", 1), ("c", 2), ("c", 3)]


def test_a_broken_line_is_named_and_the_next_one_is_read() -> None:
    good = base64.b64encode(stream()[0])
    bad = [b"***", base64.b64encode(b"\xff\xff"), base64.b64encode(b"\n\x01c"), b"A" * 2 * MOST_LINE]
    items = list(read_lines(io.BytesIO(b"\n".join([good, *bad, good]))))
    assert [(i.place, i.problem) if isinstance(i, Broken) else "record" for i in items] == [
        "record",
        ("line 2", "is not base64"),
        ("line 3", "is not a TrafficStream"),
        ("line 4", "record of connection 'c' without its number"),
        ("line 5", f"is longer than {MOST_LINE:,} bytes"),
        "record",
    ]


# The order of records


@given(st.lists(st.integers(1, 30)))
def test_ranges_of_numbers_are_a_set(numbers: list[int]) -> None:
    ranges = Numbers()
    wanted: set[int] = set()
    for number in numbers:
        assert ranges.add(number) == (number not in wanted)
        wanted.add(number)
    assert {n for n in range(40) if n in ranges} == wanted
    for number in range(40):
        assert ranges.at_or_after(number) == min((n for n in wanted if n >= number), default=None)
    missing = {n for first, last in ranges.gaps() for n in range(first, last + 1)}
    assert missing == set(range(1, max(wanted, default=0))) - wanted


@given(st.data())
def test_records_in_any_order_leave_by_connection_in_order_and_once(data: st.DataObject) -> None:
    every = [record for name in "abc" for record in map(parse, stream(name, data.draw(st.integers(1, 6))))]
    there = data.draw(st.lists(st.sampled_from(every), max_size=30))
    mending = Mending()
    items = list(in_order(lambda: there, mending))
    for name in "abc":
        numbers = [r.number for r in records(items) if r.connection.name == name]
        assert numbers == sorted({record.number for record in there if record.connection.name == name})
    assert {r.value for r in records(items)} == {record.value for record in there}
    assert items.count(LeftOut("repeated record")) == len(there) - len(records(items))
    missing = {(gap.connection.name, n) for gap in mending.shown for n in range(gap.first, gap.last + 1)}
    came = {(record.connection.name, record.number) for record in there}
    tops = {name: max(n for c, n in came if c == name) for name, _ in came}
    assert missing == {(name, n) for name, top in tops.items() for n in range(1, top)} - came


def test_what_waits_goes_to_disk_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "IN_MEMORY", 10)
    there = [parse(value) for value in reversed(stream(chunks=50))]
    assert [record.value for record in records(in_order(lambda: there, Mending()))] == stream(chunks=50)


def test_a_record_does_not_wait_for_one_that_is_not_there() -> None:
    first, _, third, fourth = map(parse, stream(chunks=4))
    other = parse(stream("d")[0])
    mending = Mending()
    assert records(in_order(lambda: [first, third, other, fourth], mending)) == [first, third, other, fourth]
    assert [str(gap) for gap in mending.shown] == ["connection 'c': record 2 is missing"]
    assert mending.shown == (Gap(first.connection, 2, 2),)


def test_records_that_change_between_the_readings_are_an_error() -> None:
    first, second = map(parse, stream(chunks=2))
    for again in ([first], [first, second, parse(stream("d")[0])]):
        readings = iter([[first, second], again])
        with pytest.raises(StrandlineError, match="changed while they were read"):
            list(in_order(lambda readings=readings: next(readings), Mending()))  # type: ignore[misc]


def test_a_shift_moves_all_times_alike() -> None:
    record = parse(stream(chunks=1)[0])
    moved = shifted(record, Nanos(-5_000_000))
    assert parse(moved.value).first == moved.first == record.first - 5_000_000
    assert moved.stamp_ms == record.stamp_ms - 5


# HAR


def entry(
    method: str = "GET", url: str = "http://shop.test/", at: str = "12:00:00.000Z", **more: Any
) -> dict[str, Any]:
    response = {"status": 200, "statusText": "OK", "headers": [], "content": {"size": 2, "text": "ok"}}
    request = {"method": method, "url": url, "headers": [], **more.pop("request", {})}
    timings = {"blocked": 5, "dns": -1, "connect": 10, "send": 1, "wait": 20, "receive": 4}
    return {
        "startedDateTime": f"2026-01-01T{at}",
        "time": 40,
        "request": request,
        "response": {**response, **more.pop("response", {})},
        "timings": timings,
        **more,
    }


def har(*entries: dict[str, Any]) -> Iterator[Item]:
    return read_har(io.BytesIO(json.dumps({"log": {"version": "1.2", "entries": entries}}).encode()), "node", "x.har")


def parsed(data: bytes, role: Any, *, method: bytes = b"GET") -> tuple[Any, bytes]:
    """A message as another parser reads it: nothing may be left over."""
    connection = h11.Connection(role)
    if role is h11.CLIENT:
        connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    head = connection.next_event()
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), event
    assert connection.trailing_data[0] == b""
    return head, body


def the_exchange(one: dict[str, Any]) -> tuple[bytes, bytes]:
    (events,) = seen(har(one)).values()
    return bytes_of(events, "read"), bytes_of(events, "write")


def test_the_times_of_an_entry_are_those_of_the_wire() -> None:
    (events,) = seen(har(entry())).values()
    assert [(kind, (at - NOON) / MS) for kind, at, _ in events] == [
        ("connect", 15),
        ("read", 15),
        ("endOfMessageIndicator", 16),
        ("write", 36),
        ("write", 40),
        ("close", 40),
    ]


def test_a_get_is_rebuilt_with_its_target_and_host() -> None:
    request, response = the_exchange(entry(url="https://u:p@shop.test:8443/a%20b/ü?q=1&r#part"))
    assert request == b"GET /a%20b/%C3%BC?q=1&r HTTP/1.1\r\nHost: shop.test:8443\r\n\r\n"
    assert response == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("post", "kind", "body"),
    [
        ({"text": '{"a": "ü"}'}, "application/json", '{"a": "ü"}'.encode()),
        ({"text": "ü"}, "text/plain; charset=latin-1", b"\xfc"),
        ({"text": "AP8=", "encoding": "base64"}, "application/octet-stream", b"\x00\xff"),
        ({"params": [{"name": "a", "value": "1 2"}, {"name": "b"}]}, "application/x-www-form-urlencoded", b"a=1+2&b="),
        (
            {"params": [{"name": "f", "fileName": "x.txt", "contentType": "text/plain", "value": "hi"}]},
            "multipart/form-data; boundary=zz",
            MULTIPART,
        ),
        ({"text": ""}, "text/plain", b""),
    ],
)
def test_a_body_is_sent_with_its_length(post: dict[str, Any], kind: str, body: bytes) -> None:
    headers = [
        {"name": "Content-Type", "value": kind},
        {"name": "Content-Length", "value": "999"},
        {"name": "Transfer-Encoding", "value": "chunked"},
        {"name": "Expect", "value": "100-continue"},
    ]
    request, _ = the_exchange(entry("POST", request={"headers": headers, "postData": {"mimeType": kind, **post}}))
    head, got = parsed(request, h11.SERVER)
    assert got == body
    assert [(name, value) for name, value in head.headers if name != b"host"] == [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
    ]


def test_a_packed_chunked_response_is_unpacked_with_a_length() -> None:
    headers = [
        {"name": "Transfer-Encoding", "value": "chunked"},
        {"name": "Content-Encoding", "value": "br"},
        {"name": "Set-Cookie", "value": "a=1\nb=2"},
    ]
    content = {"size": 4, "text": base64.b64encode(b"\x00\xff\r\n").decode(), "encoding": "base64"}
    _, response = the_exchange(entry(response={"headers": headers, "content": content}))
    head, body = parsed(response, h11.CLIENT)
    assert body == b"\x00\xff\r\n"
    assert head.headers == [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"content-length", b"4")]


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 304), ("GET", 204)])
def test_a_response_that_has_no_body_gets_none(method: str, status: int) -> None:
    headers = [] if status == 204 else [{"name": "Content-Length", "value": "77"}]
    _, response = the_exchange(entry(method, response={"status": status, "headers": headers}))
    head, body = parsed(response, h11.CLIENT, method=method.encode())
    assert body == b""
    assert head.headers == ([] if status == 204 else [(b"content-length", b"77")])


def test_http_2_becomes_http_1() -> None:
    names = [(":method", "GET"), (":authority", "h2.test"), (":scheme", "https"), (":path", "/a"), ("accept", "*/*")]
    headers = [{"name": name, "value": value} for name, value in names]
    request, response = the_exchange(
        entry(
            url="https://h2.test/a",
            request={"httpVersion": "h2", "headers": headers},
            response={"statusText": "", "headers": [{"name": ":status", "value": "200"}]},
        )
    )
    assert request == b"GET /a HTTP/1.1\r\nHost: h2.test\r\naccept: */*\r\n\r\n"
    assert response == b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok"


def test_entries_share_a_connection_as_they_did_and_never_overlap_on_one() -> None:
    found = seen(
        har(
            entry(at="12:00:02.000Z", url="http://shop.test/2", connection="80", serverIPAddress="10.0.0.1"),
            entry(at="12:00:00.000Z", url="http://shop.test/0", connection="80", serverIPAddress="10.0.0.1"),
            entry(at="12:00:00.010Z", url="http://shop.test/1", connection="80", serverIPAddress="10.0.0.1"),
            entry(at="12:00:03.000Z", url="http://shop.test/3", connection="81", serverIPAddress="10.0.0.1"),
            entry(at="12:00:04.000Z", url="http://shop.test/4", pageref="p"),
            entry(at="12:00:05.000Z", url="http://shop.test/5", pageref="p"),
            entry(at="12:00:06.000Z", url="http://other.test/6", pageref="p"),
        )
    )
    targets = [
        [data.split(b" ")[1].decode() for kind, _, data in events if kind == "read"] for events in found.values()
    ]
    assert targets == [["/0", "/2"], ["/1"], ["/3"], ["/4", "/5"], ["/6"]]
    assert all([kind for kind, _, _ in events].count("close") == 1 for events in found.values())


def test_what_was_never_sent_is_left_out_and_what_was_not_answered_has_no_response() -> None:
    items = list(
        har(
            entry(url="data:text/plain,hello"),
            entry(_fromCache="disk"),
            entry(response={"status": 0, "content": {}}),
            entry(at="13:00:00Z", response={"content": {"size": 900}}),
        )
    )
    assert [item for item in items if isinstance(item, LeftOut)] == [
        LeftOut("entry that was not sent over HTTP"),
        LeftOut("entry that was not sent over HTTP"),
        LeftOut("response body that the HAR does not have"),
    ]
    (events,) = seen(items).values()
    assert [kind for kind, _, _ in events] == [
        *("connect", "read", "endOfMessageIndicator", "read", "endOfMessageIndicator", "write", "close")
    ]


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({}, "is not an entry of a HAR: Object missing required field `startedDateTime`"),
        (entry(at="25:00:00Z"), "startedDateTime '2026-01-01T25:00:00Z' is no time"),
        (entry(at="12:00:00"), "startedDateTime '2026-01-01T12:00:00' has no time zone"),
        (entry("GET /\r\n"), "method 'GET /\\r\\n' is none"),
        (entry(request={"headers": [{"name": "a b"}]}), "header 'a b' is none"),
        (entry(request={"headers": [{"name": "host", "value": "a\r\nb"}]}), "host 'a\\r\\nb' is none"),
        (entry(url="http://[x/"), "its URL cannot be read: Invalid IPv6 URL"),
        (entry(response={"content": {"text": "*", "encoding": "base64"}}), "its body is not base64"),
        (entry(response={"status": 7}), "status 7 is none"),
    ],
)
def test_a_broken_entry_is_named_and_the_others_are_read(broken: dict[str, Any], problem: str) -> None:
    first, *rest = har(entry(), broken, entry(at="13:00:00Z"))
    assert first == Broken("entry 2", problem)
    assert len(records(rest)) == 2


@pytest.mark.parametrize("text", [b"", b"[]", b'{"log": {}}', b'{"log": {"entries": [', b"[" * 100_000, b'{"\xff": 1}'])
def test_what_is_no_har_is_one_fault_of_the_file(text: bytes) -> None:
    (item,) = read_har(io.BytesIO(text), "node", "x")
    assert isinstance(item, Broken)
    assert item.problem.startswith("is not a HAR: ")
