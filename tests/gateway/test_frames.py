"""Frames, right and wrong, in the categories of the Autobahn test suite, as bytes against a real gateway.

What a client says is echoed here by what the gateway answers to it: a ping of its own language by a pong, and the
channels of a subscription as they were asked for.
"""

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import uuid4

import pytest

from strandline.stack import KafkaCluster
from tests.gateway.raw import (
    ACCEPT,
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Raw,
    Seen,
    beside,
    close,
    frame,
    greeted,
    header,
    request,
)
from tests.ordered.support import create_topic

MOST = 70_000
SAID = b'{"type":"ping"}'
HEARD = Seen(TEXT, b'{"type":"pong"}')
PROTOCOL_ERROR, UNSUPPORTED, INVALID_DATA, TOO_BIG = 1002, 1003, 1007, 1009


@pytest.fixture(scope="module")
def port(kafka: KafkaCluster) -> Iterator[int]:
    topic = f"frames-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    limits = {"message_bytes": MOST, "messages_per_s": 1_000_000}
    with beside(kafka.address, [topic], limits=limits) as port:
        yield port


class Case(NamedTuple):
    """What is sent, what is heard, and the code of the close at the end; None where it goes on."""

    name: str
    sent: bytes
    heard: list[Seen]
    closed: int | None = None
    chop: int = 0


def said(size: int) -> bytes:
    """A message of so many bytes."""
    return SAID.ljust(size)


def parts(*payloads: bytes, opcode: int = TEXT, between: bytes = b"") -> bytes:
    """A message in fragments, with something between them."""
    last = len(payloads) - 1
    return between.join(
        frame(CONT if place else opcode, payload, fin=place == last) for place, payload in enumerate(payloads)
    )


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


PONGS = [Seen(PONG, bytes([n])) for n in range(10)]

FRAMING = [
    *(Case(f"text of {size} bytes", frame(TEXT, said(size)), [HEARD]) for size in (15, 125, 126, 127, 128)),
    *(Case(f"text of {size} bytes", frame(TEXT, said(size)), [HEARD]) for size in (65_535, 65_536, MOST)),
    *(Case(f"in pieces of {n}", frame(TEXT, said(65_536)), [HEARD], chop=n) for n in (997, 4096)),
    Case("byte by byte", frame(TEXT, said(200)), [HEARD], chop=1),
    Case("several at once", frame(TEXT, SAID) * 5, [HEARD] * 5),
    Case("a size in more bytes than it needs", header(TEXT, 15, form=2) + frame(TEXT, SAID)[2:], [HEARD]),
    Case("not masked", frame(TEXT, SAID, masked=False), [], PROTOCOL_ERROR),
    *(Case(f"binary of {size} bytes", frame(BINARY, bytes(size)), [], UNSUPPORTED) for size in (0, 125, 65_536)),
    Case("binary in fragments", parts(b"a", b"b", opcode=BINARY), [], UNSUPPORTED),
]
PINGS = [
    Case("empty", frame(PING), [Seen(PONG, b"")]),
    Case("with a text", frame(PING, b"Hello"), [Seen(PONG, b"Hello")]),
    Case("with bytes", frame(PING, b"\x00\xff\xfe\xfd"), [Seen(PONG, b"\x00\xff\xfe\xfd")]),
    Case("of 125 bytes", frame(PING, b"\xfe" * 125), [Seen(PONG, b"\xfe" * 125)]),
    Case("of 125 bytes, byte by byte", frame(PING, b"\xfe" * 125), [Seen(PONG, b"\xfe" * 125)], chop=1),
    Case("of 126 bytes", frame(PING, b"\xfe" * 126), [], PROTOCOL_ERROR),
    Case("a pong that nobody asked for", frame(PONG) + frame(TEXT, SAID), [HEARD]),
    Case("a pong with a text that nobody asked for", frame(PONG, b"x") + frame(PING, b"y"), [Seen(PONG, b"y")]),
    Case("ten", b"".join(frame(PING, bytes([n])) for n in range(10)), PONGS),
    Case("ten, byte by byte", b"".join(frame(PING, bytes([n])) for n in range(10)), PONGS, chop=1),
]
RESERVED = [
    *(Case(f"bits {rsv}", frame(TEXT, SAID, rsv=rsv), [], PROTOCOL_ERROR) for rsv in range(1, 8)),
    Case("after a text", frame(TEXT, SAID) + frame(TEXT, SAID, rsv=2), [HEARD], PROTOCOL_ERROR),
    Case("after a text, byte by byte", frame(TEXT, SAID) + frame(TEXT, SAID, rsv=3), [HEARD], PROTOCOL_ERROR, chop=1),
    Case("of a ping", frame(PING, b"x", rsv=6), [], PROTOCOL_ERROR),
    Case("of a close", frame(CLOSE, rsv=7), [], PROTOCOL_ERROR),
    Case("of a fragment", frame(TEXT, b"{", fin=False) + frame(CONT, b"}", rsv=4), [], PROTOCOL_ERROR),
]
OPCODES = [
    Case(f"opcode {opcode}{what}", before + frame(opcode, payload), heard, PROTOCOL_ERROR)
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
    for what, before, payload, heard in (
        ("", b"", b"", []),
        (" after a text, with a payload", frame(TEXT, SAID), b"unknown", [HEARD]),
    )
]
FRAGMENTS = [
    Case("a ping in fragments", frame(PING, b"a", fin=False) + frame(CONT, b"b"), [], PROTOCOL_ERROR),
    Case("a pong in fragments", frame(PONG, b"a", fin=False) + frame(CONT, b"b"), [], PROTOCOL_ERROR),
    Case("a close in fragments", frame(CLOSE, b"\x03\xe8", fin=False), [], PROTOCOL_ERROR),
    Case("a text in two", parts(SAID[:7], SAID[7:]), [HEARD]),
    Case("a text in two, byte by byte", parts(SAID[:7], SAID[7:]), [HEARD], chop=1),
    Case("a text byte by byte, each in a frame", parts(*split(SAID, 1)), [HEARD]),
    Case("empty fragments around it", parts(b"", SAID, b""), [HEARD]),
    Case("all of it empty", parts(b"", b"", b"") + frame(TEXT, SAID), [Seen(TEXT, b"bad_json"), HEARD]),
    Case("a ping between", parts(SAID[:7], SAID[7:], between=frame(PING, b"x")), [Seen(PONG, b"x"), HEARD]),
    Case(
        "five fragments with pings between, byte by byte",
        parts(*split(SAID, 3), between=frame(PING, b"x")),
        [*[Seen(PONG, b"x")] * 4, HEARD],
        chop=1,
    ),
    Case("a fragment that continues nothing", frame(CONT, SAID), [], PROTOCOL_ERROR),
    Case("one that continues nothing, unfinished", frame(CONT, SAID, fin=False), [], PROTOCOL_ERROR),
    Case("one too many", parts(SAID[:7], SAID[7:]) + frame(CONT, b"x"), [HEARD], PROTOCOL_ERROR),
    Case("another text within", frame(TEXT, SAID[:7], fin=False) + frame(TEXT, SAID), [], PROTOCOL_ERROR),
    Case("65,536 bytes in 1,300 each", parts(*split(said(65_536), 1_300)), [HEARD]),
    Case("65,536 bytes in 64 each", parts(*split(said(65_536), 64)), [HEARD]),
]
LIMITS = [
    Case("one byte too many", frame(TEXT, said(MOST + 1)), [], TOO_BIG),
    Case("too many in fragments", parts(said(MOST), b" "), [], TOO_BIG),
    Case("ten million bytes, of which none has come yet", header(TEXT, 10_000_000), [], TOO_BIG),
    Case("as many as can be said", header(TEXT, 2**63 - 1), [], TOO_BIG),
    Case("more than may be said", header(TEXT, 2**64 - 1), [], TOO_BIG),
    Case("too many binary ones", frame(BINARY, bytes(MOST + 1)), [], TOO_BIG),
]


def _check(raw: Raw, case: Case) -> None:
    raw.send(case.sent, case.chop)
    for expected in case.heard:
        heard = raw.hear()
        assert heard is not None
        assert heard == expected or (expected.payload in heard.payload and heard.opcode == expected.opcode)
    if case.closed is None:
        raw.send(frame(PING, b"still here"))
        assert raw.hear() == Seen(PONG, b"still here")
    else:
        heard = raw.hear()
        assert heard is not None
        assert (heard.opcode, struct.unpack("!H", heard.payload[:2])[0]) == (CLOSE, case.closed)
        assert raw.hear() is None
        assert not raw.is_reset


def _named(categories: dict[str, list[Case]]) -> list[object]:
    return [pytest.param(case, id=f"{kind}: {case.name}") for kind, cases in categories.items() for case in cases]


@pytest.mark.parametrize(
    "case",
    _named(
        {
            "framing": FRAMING,
            "pings": PINGS,
            "reserved": RESERVED,
            "opcodes": OPCODES,
            "fragments": FRAGMENTS,
            "limits": LIMITS,
        }
    ),
)
def test_frames_are_taken_or_refused_as_the_standard_says(port: int, case: Case) -> None:
    with greeted(port) as raw:
        _check(raw, case)


VALID = [
    "κόσμε",
    "Hello-µ@ßöäüàá-UTF-8!!",
    "\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd",
    "\ufffe\uffff\ufdd0\U0001fffe\U0001ffff",
    "\U00010000\U000fffff\U00100000\U0010ffff",
    "日本語😀",
]


@pytest.mark.parametrize("text", VALID, ids=ascii)
@pytest.mark.parametrize("size", [0, 1, 2, 3], ids=["whole", "in ones", "in twos", "in threes"])
def test_texts_come_through_also_where_a_letter_is_split_between_frames(port: int, text: str, size: int) -> None:
    asked = {"type": "subscribe", "data": {"channels": [text]}}
    message = json.dumps(asked, ensure_ascii=False).encode()
    with greeted(port) as raw:
        raw.send(parts(*split(message, size)) if size else frame(TEXT, message))
        heard = raw.hear()
        assert heard is not None
        assert json.loads(heard.payload)["channels"] == [text]


INVALID = {
    "surrogate in the middle": b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
    "first half of a pair": b"\xed\xad\xbf",
    "a pair of halves": b"\xed\xa0\x80\xed\xb0\x80",
    "cut after one of two": b"\xce",
    "cut after one of three": b"\xe1",
    "cut after two of three": b"\xe1\xbd",
    "cut after three of four": b"\xf4\x8f\xbf",
    "lone continuation": b"\x80",
    "six of them": b"\x80\xbf\x80\xbf\x80\xbf",
    "beyond the last": b"\xf4\x90\x80\x80",
    "five bytes": b"\xf8\x88\x80\x80\x80",
    "six bytes": b"\xfc\x84\x80\x80\x80\x80",
    "fe": b"\xfe",
    "ff": b"\xff",
    "fe fe ff ff": b"\xfe\xfe\xff\xff",
    "a slash in two bytes": b"\xc0\xaf",
    "a slash in three": b"\xe0\x80\xaf",
    "a slash in four": b"\xf0\x80\x80\xaf",
    "zero in two bytes": b"\xc0\x80",
    "the last of two in three": b"\xe0\x9f\xbf",
    "the last of three in four": b"\xf0\x8f\xbf\xbf",
}


@pytest.mark.parametrize("bad", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("way", ["whole", "in frames", "byte by byte"])
def test_what_is_no_utf_8_closes_the_connection(port: int, bad: bytes, way: str) -> None:
    message = b'{"type":"subscribe","data":{"channels":["' + bad + b'"]}}'
    sent = parts(*split(message, 1)) if way == "in frames" else frame(TEXT, message)
    with greeted(port) as raw:
        _check(raw, Case("", sent, [], INVALID_DATA, chop=int(way == "byte by byte")))


@pytest.mark.parametrize("code", [*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999])
def test_a_close_is_answered_by_the_same(port: int, code: int) -> None:
    with greeted(port) as raw:
        raw.send(close(code, b"bye"))
        assert raw.hear() == Seen(CLOSE, struct.pack("!H", code) + b"bye")
        assert raw.hear() is None
        assert not raw.is_reset


@pytest.mark.parametrize(
    "code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535], ids="code {}".format
)
def test_a_close_with_a_code_that_there_is_not_is_an_error(port: int, code: int) -> None:
    with greeted(port) as raw:
        _check(raw, Case("", close(code), [], PROTOCOL_ERROR))


CLOSES = [
    Case("a byte in place of a code", frame(CLOSE, b"\x03"), [], PROTOCOL_ERROR),
    Case("longer than may be", close(1000, b"x" * 124), [], PROTOCOL_ERROR),
    Case("as long as may be", close(1000, b"x" * 123), [], 1000),
    Case("a reason that is no UTF-8", close(1000, b"\xce\xba\xed\xa0\x80"), [], INVALID_DATA),
    Case("a text behind it is not heard", close(1000) + frame(TEXT, SAID), [], 1000),
    Case("a ping behind it is not answered", close(1000) + frame(PING, b"x"), [], 1000),
    Case("twice", close(1000) + close(1000), [], 1000),
    Case("in the middle of a text", frame(TEXT, b"{", fin=False) + close(1000), [], PROTOCOL_ERROR),
    Case("after a text", frame(TEXT, SAID) + close(1000), [HEARD], 1000),
]


@pytest.mark.parametrize("case", CLOSES, ids=[case.name for case in CLOSES])
def test_a_close_ends_it(port: int, case: Case) -> None:
    with greeted(port) as raw:
        _check(raw, case)


def test_a_close_without_a_code_is_answered_without_one(port: int) -> None:
    with greeted(port) as raw:
        raw.send(frame(CLOSE))
        assert raw.hear() == Seen(CLOSE, b"")
        assert raw.hear() is None
        assert not raw.is_reset


GREETINGS = {
    "as usual": request(),
    "names in other letters": request(without="Upgrade", UPGRADE="WebSocket"),
    "more than one connection option": request(Connection="keep-alive, Upgrade"),
    "a query": request("GET /?a=b HTTP/1.1"),
    "a subprotocol, which is not taken up": request(Sec_WebSocket_Protocol="chat, superchat"),
    "compression, which is not taken up": request(Sec_WebSocket_Extensions="permessage-deflate"),
    "an extension that nobody knows": request(Sec_WebSocket_Extensions="fly; high=1"),
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_handshake_is_answered(port: int, greeting: bytes) -> None:
    with Raw(port, greeting) as raw:
        response = raw.head()
        assert response.startswith("HTTP/1.1 101 ")
        assert f"Sec-WebSocket-Accept: {ACCEPT}\r\n" in response
        assert "Sec-WebSocket-Protocol" not in response
        assert "Sec-WebSocket-Extensions" not in response
        raw.send(frame(TEXT, SAID))
        assert raw.hear() == HEARD


def test_a_handshake_may_come_byte_by_byte(port: int) -> None:
    with Raw(port, request()[:1]) as raw:
        raw.send(request()[1:], chop=1)
        assert raw.head().startswith("HTTP/1.1 101 ")
        raw.send(frame(TEXT, SAID))
        assert raw.hear() == HEARD


WRONG_GREETINGS = {
    "no upgrade": (request(without="Upgrade"), 426),
    "no connection": (request(without="Connection"), 426),
    "another upgrade": (request(Upgrade="h2c"), 426),
    "no key": (request(without="Sec-WebSocket-Key"), 400),
    "a key that is too short": (request(Sec_WebSocket_Key="AAAA"), 400),
    "a key that is no base64": (request(Sec_WebSocket_Key="!" * 24), 400),
    "no version": (request(without="Sec-WebSocket-Version"), 400),
    "an old version": (request(Sec_WebSocket_Version="8"), 400),
}


@pytest.mark.parametrize(("greeting", "status"), WRONG_GREETINGS.values(), ids=WRONG_GREETINGS)
def test_a_handshake_that_is_none_is_refused(port: int, greeting: bytes, status: int) -> None:
    with Raw(port, greeting) as raw:
        assert raw.head().startswith(f"HTTP/1.1 {status} ")
        raw.rest()


NO_REQUESTS = {
    "POST": request("POST / HTTP/1.1"),
    "HTTP/1.0": request("GET / HTTP/1.0"),
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a line without an end": b"GET /" + b"a" * 20_000,
    "headers without an end": request()[:-2] + b"X: y\r\n" * 1_000 + b"\r\n",
    "a body": request(Content_Length="5") + b"hello",
    "in chunks": request(Transfer_Encoding="chunked"),
    "a message before the answer": request() + frame(TEXT, SAID),
    "a ping before the answer": request() + frame(PING, b"x"),
    "a close before the answer": request() + close(1000),
    "nonsense before the answer": request() + b"\xff" * 20,
}


@pytest.mark.parametrize("greeting", NO_REQUESTS.values(), ids=NO_REQUESTS)
def test_what_is_no_request_for_a_websocket_gets_none(port: int, greeting: bytes) -> None:
    with Raw(port, greeting) as raw:
        assert b" 101 " not in raw.rest()
