"""Laws of the recorder: every byte once, each request ends right behind its last byte, and a loss is a clean cut."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.capture.recorder import OPAQUE, Recorder, Reliable
from strandline.capture.redaction import Action, Redaction
from strandline.units import Nanos
from tests.capture.support import OK, Captured, captured
from tests.wire.messages import Message, pieces, requests, responses

AT = Nanos(1_700_000_000_000_000_001)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"


def new(reliable: Reliable = Reliable.NONE, redaction: Redaction | None = None) -> Recorder:
    numbers = itertools.count(1)
    recorder = Recorder("n", lambda: f"c{next(numbers)}", reliable, redaction)
    recorder.connect(AT)
    return recorder


def closed(recorder: Recorder) -> Captured:
    key, records = recorder.close(AT)
    (found,) = captured((key, record) for record in records)
    assert found.is_whole
    return found


@st.composite
def exchanges(draw: st.DrawFn) -> list[tuple[Message, Message]]:
    asked = draw(st.lists(requests(), min_size=1, max_size=4))
    return [
        (request, draw(responses(request.method).filter(lambda r: b"Content-Length" in r.head or r.body)))
        for request in asked
    ]


@settings(max_examples=50)
@given(exchanges(), st.booleans(), st.data())
def test_any_traffic_cut_anywhere_is_recorded_whole_and_marked_after_each_request(
    pairs: list[tuple[Message, Message]], is_pipelined: bool, data: st.DataObject
) -> None:
    recorder = new()
    turns = [pairs] if is_pipelined else [[pair] for pair in pairs]
    ended = 0
    for turn in turns:
        for piece in data.draw(pieces(b"".join(request.wire for request, _ in turn))):
            assert recorder.read(AT, piece) == []
        for piece in data.draw(pieces(b"".join(response.wire for _, response in turn))):
            ended += recorder.write(AT, piece)
        assert recorder.is_idle
    found = closed(recorder)
    assert found.requests == [request.wire for request, _ in pairs]
    assert found.written == b"".join(response.wire for _, response in pairs)
    marks = [value for kind, value in found.events if kind == "end"]
    assert [sum(mark) for mark in marks] == [len(request.head) for request, _ in pairs]
    assert [mark[0] for mark in marks] == [request.head.find(b"\n") + 1 for request, _ in pairs]


@settings(max_examples=50)
@given(st.lists(requests(), min_size=1, max_size=4), st.sampled_from(Reliable), st.data())
def test_what_is_held_is_the_end_of_each_request_that_must_be(
    messages: list[Message], reliable: Reliable, data: st.DataObject
) -> None:
    recorder = new(reliable)
    held = []
    position = 0
    for piece in data.draw(pieces(b"".join(message.wire for message in messages))):
        places = recorder.read(AT, piece)
        assert all(start < stop for start, stop in places)
        held += [position + stop for _, stop in places]
        position += len(piece)
    ends = itertools.accumulate(len(message.wire) for message in messages)
    expected = [end for end, message in zip(ends, messages, strict=True) if reliable.holds(message.method)]
    assert held == expected


@pytest.mark.parametrize(
    ("asked", "answer", "why"),
    [
        (b"\x16\x03\x01 what\n\n", b"", "request"),
        (GET, b"SSH-2.0-x\r\n", "response"),
        (GET, UPGRADED + b"\x81\x00", "upgrade"),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n\x00", "upgrade"),
    ],
)
def test_what_is_not_http_is_recorded_raw_and_without_marks(asked: bytes, answer: bytes, why: str) -> None:
    recorder = new(Reliable.ALL)
    recorder.read(AT, asked)
    recorder.write(AT, answer)
    assert recorder.opaque is not None
    assert recorder.opaque.startswith(why)
    if why != "response":
        assert recorder.read(AT, GET) == []
    found = closed(recorder)
    assert found.read == asked + (GET if why != "response" else b"")
    assert found.written == answer
    assert [value for kind, value in found.events if kind == "exception"] == [OPAQUE + recorder.opaque]


def test_the_records_say_where_a_connection_was_upgraded() -> None:
    recorder = new()
    recorder.read(AT, GET)
    recorder.write(AT, UPGRADED + b"\x81\x00")
    assert closed(recorder).events[2:] == [
        ("end", (16, len(GET) - 16)),
        ("write", UPGRADED),
        ("exception", OPAQUE + "upgrade"),
        ("write", b"\x81\x00"),
        ("close", None),
    ]


@pytest.mark.parametrize("answer", [b"SSH-2.0-S\r\n", UPGRADED + b"S"])
def test_where_a_redaction_is_asked_for_nothing_opaque_is_recorded(answer: bytes) -> None:
    recorder = new(redaction=Redaction(headers={"x": Action.REMOVE}))
    recorder.read(AT, GET)
    recorder.write(AT, answer)
    recorder.read(AT, b"S")
    recorder.write(AT, b"S")
    found = closed(recorder)
    assert found.read == GET
    assert b"S" not in found.written.replace(UPGRADED, b"")


def test_a_recording_that_lost_a_record_ends_and_a_new_one_begins_with_the_next_request() -> None:
    recorder = new()
    recorder.read(AT, POST[:-1])
    recorder.lose()
    recorder.read(AT, POST[-1:] + GET)
    recorder.write(AT, OK)
    assert recorder.take() == ("", [])
    recorder.read(AT, GET)  # one is unanswered, so that its answer would be taken for this one's
    assert recorder.take() == ("", [])
    recorder.write(AT, OK + OK)
    recorder.read(AT, POST)
    recorder.write(AT, OK)
    found = closed(recorder)
    assert found.id == "c2"
    assert found.requests == [POST]
    assert found.written == OK


def test_a_response_that_only_the_end_of_the_connection_ends_is_redacted_as_one() -> None:
    recorder = new(redaction=Redaction(json={"a": Action.REMOVE}))
    recorder.read(AT, GET)
    recorder.write(AT, b'HTTP/1.1 200 OK\r\n\r\n{"a":')
    recorder.write(AT, b'1,"b":2}')
    recorder.end_of_responses(AT)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Strandline-Redacted: field a\r\n\r\n"
    assert closed(recorder).written == head + b'{"b":2}'


def test_a_request_that_is_cut_has_no_mark() -> None:
    recorder = new()
    recorder.read(AT, POST[:-1])
    recorder.disconnect(AT)
    assert closed(recorder).kinds == ["connect", "read", "disconnect", "close"]


CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = [GET, POST, OK, UPGRADED, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n"]
PARTS = [b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"X: y\r\n", b"\r\n"]
ODD = [b"Transfer-Encoding:\r\n chunked\r\n", b"X: y\rTransfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n"]
CHUNKS = [b"3 ;x\r\nabc\r\n", b"0\r\n"]
FRAGMENTS = st.sampled_from([*WHOLE, *PARTS, *ODD, *CHUNKS])


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.booleans(), FRAGMENTS | st.binary(max_size=8)), max_size=12),
    st.sampled_from([None, Redaction(headers={"x": Action.REMOVE}), Redaction(json={"a": Action.REMOVE})]),
)
def test_whatever_comes_from_either_side_the_recorder_takes_it(
    turns: list[tuple[bool, bytes]], redaction: Redaction | None
) -> None:
    recorder = new(Reliable.ALL, redaction)
    recorder.read(AT, GET)
    for is_read, data in turns:
        recorder.read(AT, data) if is_read else recorder.write(AT, data)
    recorder.disconnect(AT)
    recorder.end_of_responses(AT)
    found = closed(recorder)
    if redaction is None:
        assert found.read == GET + b"".join(data for is_read, data in turns if is_read)
        assert found.written == b"".join(data for is_read, data in turns if not is_read)


@pytest.mark.parametrize("odd", ODD)
def test_a_head_that_readers_take_for_different_messages_breaks_nothing(odd: bytes) -> None:
    recorder = new(redaction=Redaction(headers={"x": Action.REMOVE}, json={"a": Action.REMOVE}))
    recorder.read(AT, GET)
    recorder.write(AT, b"HTTP/1.1 200 OK\r\n" + odd + b"Content-Length: 3\r\n\r\n")
    recorder.write(AT, b'"S"')
    recorder.end_of_responses(AT)
    assert closed(recorder).written.startswith(b"HTTP/1.1 200 OK\r\n")
