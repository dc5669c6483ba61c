"""The laws of framing: any cut of the bytes gives the same messages, and they are those that h11 reads."""

from contextlib import suppress

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.wire.http1 import MAX_HEAD, FramingError, RequestFramer, ResponseFramer
from tests.wire.messages import Message, pieces, requests, responses


def split(framer: RequestFramer, data: list[bytes]) -> list[bytes]:
    """The requests, as the framer tells them apart; the last may be incomplete."""
    found, begun = [], b""
    for piece in data:
        start = 0
        while start < len(piece):
            stop = framer.feed(piece, start)
            begun += piece[start:stop]
            start = stop
            if framer.complete:
                found.append(begun)
                framer.next()
                begun = b""
    return [*found, begun] if begun else found


@given(st.lists(requests(), max_size=4), st.data())
def test_any_cut_of_pipelined_requests_gives_the_same_requests(sent: list[Message], data: st.DataObject) -> None:
    cut = data.draw(pieces(b"".join(message.wire for message in sent)))
    assert split(RequestFramer(), cut) == [message.wire for message in sent]


@given(st.data(), st.lists(requests(), min_size=1, max_size=3))
def test_any_cut_of_responses_gives_the_same_responses(data: st.DataObject, asked: list[Message]) -> None:
    answers = [data.draw(responses(request.method)) for request in asked]
    framer = ResponseFramer(answers[0].method)
    found: list[tuple[int, bytes, int]] = []
    for piece in data.draw(pieces(b"".join(answer.wire for answer in answers))):
        start = 0
        while start < len(piece):
            start = framer.feed(piece, start)
            if framer.complete:
                found.append((framer.status, framer.head, framer.body_length))
                framer.next(answers[min(len(found), len(answers) - 1)].method)
    assert [(status, head) for status, head, _ in found] == [(answer.status, answer.head) for answer in answers]
    assert not framer.has_begun


@given(requests())
def test_a_request_is_what_h11_reads(request: Message) -> None:
    theirs = h11.Connection(h11.SERVER)
    theirs.receive_data(request.wire)
    body = 0
    while not isinstance(event := theirs.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA
        body += len(event.data) if isinstance(event, h11.Data) else 0
    ours = RequestFramer()
    assert ours.feed(request.wire) == len(request.wire)
    assert ours.complete
    assert (ours.head, ours.body_length) == (request.head, body)


@given(st.binary(max_size=300))
def test_garbage_is_an_error_or_a_message_never_anything_else(data: bytes) -> None:
    for framer in (RequestFramer(), ResponseFramer()):
        with suppress(FramingError):
            assert 0 <= framer.feed(data) <= len(data)


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD,
    ],
)
def test_what_two_readers_may_take_differently_is_refused(head: bytes) -> None:
    with pytest.raises(FramingError):
        RequestFramer().feed(head)


def test_a_response_without_a_length_ends_with_the_connection() -> None:
    framer = ResponseFramer()
    framer.feed(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert framer.in_body
    assert framer.end()
    assert framer.body_length == 3


def test_a_response_that_is_cut_off_is_not_complete() -> None:
    framer = ResponseFramer()
    framer.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc")
    assert not framer.end()


@pytest.mark.parametrize(("method", "status"), [(b"GET", 101), (b"CONNECT", 200)])
def test_after_an_upgrade_all_bytes_belong_to_no_message(method: bytes, status: int) -> None:
    framer = ResponseFramer(method)
    data = b"HTTP/1.1 %d Yes\r\nUpgrade: x\r\n\r\n\x81\x05hello" % status
    assert framer.feed(data) == len(data) - 7
    assert framer.complete
    assert framer.opaque
    framer.next()
    assert framer.feed(b"HTTP/1.1 200 OK\r\n\r\n") == 19
    assert not framer.complete


def test_line_feeds_alone_and_empty_lines_before_a_request_are_taken() -> None:
    framer = RequestFramer()
    data = b"\r\n\nPOST / HTTP/1.0\nContent-Length: 2\n\nab"
    assert framer.feed(data) == len(data)
    assert framer.complete
