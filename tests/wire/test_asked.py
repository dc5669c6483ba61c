"""What a client may say: whatever its text is, it is a message or has a code, and no digit of an offset is lost."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from strandline.wire.asked import (
    ERROR,
    MOST_OFFSET,
    RECONNECT_ERROR,
    Missed,
    NotUnderstood,
    Reconnect,
    partitions_of,
    positions_of,
    read,
)
from strandline.wire.resume_token import Position

OFFSETS = st.integers(0, MOST_OFFSET)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
KINDS = st.sampled_from(["subscribe", "unsubscribe", "reconnect", "resume", "ack", "auth", "ping"]) | st.text()
MESSAGES = st.builds(lambda kind, data: json.dumps({"type": kind, "data": data}).encode(), KINDS, JSON)
ANOTHER_FORM = st.sampled_from([int, str])


@given(st.binary() | MESSAGES)
def test_any_text_is_a_message_or_has_a_code(text: bytes) -> None:
    try:
        read(text)
    except NotUnderstood as error:
        assert error.code in {"bad_json", "bad_message", "unknown_type"}
        assert str(error)


@given(st.dictionaries(st.integers(0, 999_999_999), st.tuples(OFFSETS, ANOTHER_FORM), max_size=5))
def test_an_offset_is_the_same_as_a_number_and_as_its_digits(
    places: dict[int, tuple[int, type[int] | type[str]]],
) -> None:
    told = {str(number): form(offset) for number, (offset, form) in places.items()}
    assert partitions_of("t", told) == {number: offset for number, (offset, _) in places.items()}


@given(st.integers(-1, MOST_OFFSET))
def test_what_was_received_last_is_not_asked_for_again(last: int) -> None:
    text = json.dumps({"type": "reconnect", "data": {"last_offset": {"a": last, "b": {"3": last}}}}).encode()
    message = read(text)
    assert isinstance(message, Reconnect)
    assert message.data == Missed({"a": last, "b": {"3": last}})
    assert positions_of(message.data) == {"a": Position(last + 1), "b": {3: Position(last + 1)}}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (b'{"type":"reconnect"}', RECONNECT_ERROR),
        (b'{"type":"reconnect","data":{"last_offset":7}}', RECONNECT_ERROR),
        (b'{"data":{"type":"reconnect"},"type":"subscribe"}', ERROR),
        (b'{"type":["reconnect"]}', ERROR),
        (b'{"type":"reconnect"', ERROR),
    ],
)
def test_a_reconnect_that_is_wrong_is_told_as_one(text: bytes, answer: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read(text)
    assert caught.value.answer == answer
