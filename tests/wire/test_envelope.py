"""Frames of records: one WebSocket text each, valid JSON, with the client's own number."""

import json
from base64 import b64decode, b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from strandline.wire.envelope import Stated, data_of, frame_of, numbered, replayed

WORDS = st.text(max_size=20)
STATED = st.builds(
    Stated,
    topic=WORDS,
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(0, 2**50),
    channel=WORDS,
    type=WORDS,
    priority=WORDS,
)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | WORDS, lambda inner: st.lists(inner, max_size=4))


def texts(data: bytes) -> list[bytes]:
    """The frames in some bytes, as the library reads them."""
    found = []
    while data:
        frame, size = _frame(data)
        assert frame.opcode is Opcode.TEXT
        found.append(bytes(frame.data))
        data = data[size:]
    return found


def _frame(data: bytes) -> tuple[Frame, int]:
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=False)
    try:
        next(parsing)
    except StopIteration as done:
        frame: Frame = done.value
        return frame, len(data) - len(reader.buffer)
    raise AssertionError("the frame is cut")


@given(
    st.lists(st.tuples(STATED, JSON), min_size=1, max_size=5), st.lists(st.integers(1, 10**11), min_size=1, max_size=4)
)
def test_each_client_gets_every_record_with_its_own_numbers(
    records: list[tuple[Stated, object]], firsts: list[int]
) -> None:
    frames = [frame_of(stated, data_of(json.dumps(value).encode())) for stated, value in records]
    for first, data in zip(firsts, numbered(frames, firsts), strict=True):
        for place, (text, (stated, value)) in enumerate(zip(texts(data), records, strict=True)):
            assert json.loads(text) == {
                "seq": first + place,
                "ts": stated.timestamp,
                "type": stated.type,
                "priority": stated.priority,
                "channel": stated.channel,
                "topic": stated.topic,
                "partition": stated.partition,
                "offset": stated.offset,
                "data": value,
            }


@given(STATED, st.integers(0, 70_000))
def test_a_replayed_record_differs_in_its_type_alone(stated: Stated, size: int) -> None:
    live = frame_of(stated, data_of(b'"' + b"x" * size + b'"'))
    (before,), (after,) = texts(live), texts(replayed(live))
    assert json.loads(after.replace(b" " * 12, b"1")) == {
        **json.loads(before.replace(b" " * 12, b"1")),
        "type": "replay:message",
    }


@given(st.binary(max_size=50))
def test_a_value_that_is_not_json_comes_as_base64_and_never_as_it_is(value: bytes) -> None:
    told = json.loads(b"{" + data_of(value) + b"}")
    try:
        expected = json.loads(value)
    except ValueError:
        assert told["encoding"] == "base64"
    else:
        assert "encoding" in told or told["data"] == expected


def test_no_value_is_null() -> None:
    assert data_of(None) == b'"data":null'


# Not by Hypothesis, which makes more room in the stack.
@pytest.mark.parametrize("within", [0, 50, 200])
@pytest.mark.parametrize("depth", [1, 300, *range(350, 1001, 50)])
def test_what_is_sent_as_json_is_not_nested_deeper_than_a_client_can_read(depth: int, within: int) -> None:
    def read(frames: int) -> object:
        """As a program does that calls a client from deep within."""
        return msgspec.json.decode(b"{%b}" % data) if not frames else read(frames - 1)

    value = b"[" * depth + b"]" * depth
    data = data_of(value)
    found = read(within)
    assert isinstance(found, dict)
    if depth <= 300:
        assert "encoding" not in found
    if "encoding" in found:
        assert b64decode(found["data"]) == value


def test_brackets_that_are_closed_by_no_one_but_us_are_no_json() -> None:
    value = b"1]," + b"[]," * 600 + b"[1"
    assert data_of(value) == b'"encoding":"base64","data":"' + b64encode(value) + b'"'
