"""A message comes out of its frame as it went in, and whatever is no message is refused."""

import contextlib
import re
from typing import get_args

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from strandline.errors import MalformedChange
from strandline.wire.pgoutput import (
    Begin,
    Commit,
    Message,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    decode,
    lsn_text,
)
from tests.wire.replication import INSIDE, OUTSIDE, encoded

EITHER = st.tuples(OUTSIDE, st.just(False)) | st.tuples(INSIDE, st.just(True))


ALONE = {Begin, Commit, StreamStart, StreamCommit, StreamAbort}
"""These never stand inside a streamed transaction."""


@pytest.mark.parametrize("kind", get_args(Message))
def test_every_kind_of_message_is_tried_inside_and_outside_a_streamed_transaction(kind: type) -> None:
    for tried, is_there in ((OUTSIDE, kind is not StreamStop), (INSIDE, kind not in ALONE)):
        if is_there:
            find(
                tried,
                lambda message: type(message) is kind,
                settings=settings(phases=[Phase.generate], max_examples=5_000),
            )


@given(EITHER)
def test_a_message_comes_out_as_it_went_in(case: tuple[Message, bool]) -> None:
    message, streaming = case
    assert decode(encoded(message), streaming=streaming) == message


@given(EITHER)
def test_a_frame_cut_at_any_byte_is_refused(case: tuple[Message, bool]) -> None:
    message, streaming = case
    frame = encoded(message)
    for end in range(len(frame)):
        with pytest.raises(MalformedChange):
            decode(frame[:end], streaming=streaming)


@given(EITHER, st.binary(min_size=1, max_size=20))
def test_a_frame_that_goes_on_is_refused(case: tuple[Message, bool], more: bytes) -> None:
    message, streaming = case
    with pytest.raises(MalformedChange):
        decode(encoded(message) + more, streaming=streaming)


@given(EITHER, st.data())
def test_a_frame_with_a_changed_byte_is_read_or_refused(case: tuple[Message, bool], data: st.DataObject) -> None:
    frame = bytearray(encoded(case[0]))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedChange):
        decode(bytes(frame), streaming=case[1])


@given(st.sampled_from(b"BCORYIUDTMSEcA"), st.binary(max_size=60), st.booleans())
def test_garbage_behind_a_known_letter_is_read_or_refused(kind: int, rest: bytes, streaming: bool) -> None:
    with contextlib.suppress(MalformedChange):
        decode(bytes([kind]) + rest, streaming=streaming)


INSERT = b"I\0\0\0\7N\0\1"


@pytest.mark.parametrize(
    ("frame", "streaming", "told"),
    [
        (b"", False, "a message is empty"),
        (b"?", False, "no message begins with b'?'"),
        (b"I\0\0", False, "Insert ends early, after 3 bytes"),
        (INSERT + b"t\xff\xff\xff\xffx", False, "Insert ends early: it needs 4294967308 bytes and has 14"),
        (INSERT + b"nn", False, "Insert goes on: it needs 9 bytes and has 10"),
        (INSERT + b"b\0\0\0\1x", False, "column 1 of a row is in binary form; replicate without option 'binary'"),
        (INSERT + b"x", False, "column 1 of a row is of the unknown kind b'x'"),
        (b"I\0\0\0\7K\0\0", False, "Insert has no new row: b'K' stands in its place"),
        (b"U\0\0\0\7K\0\0O\0\0", False, "Update has no new row: b'O' stands in its place"),
        (b"D\0\0\0\7N\0\0", False, "Delete has no old row: b'N' stands in its place"),
        (b"T\xff\xff\xff\xff\0", False, "Truncate ends early, after 6 bytes"),
        (b"R\0\0\0\7a\0b\0z\0\0", False, "Relation a.b has the unknown replica identity b'z'"),
        (b"Y\0\0\0\7a\0\xff\0", False, "a name in Type is not UTF-8: b'\\xff'; leave its table out"),
        (b"B" + b"\x7f" * 20, False, "a commit time of 9187201950435737471 microseconds is out of range"),
        (encoded(Begin(1, 2, 3)), True, "Begin stands inside a streamed transaction"),
        (b"E", False, "Stream Stop stands outside a streamed transaction"),
        (encoded(StreamAbort(1, 2)) + b"\0" * 16, False, "Stream Abort is one of protocol 4"),
        (b"b" + b"\0" * 30, False, "Begin Prepare belongs to two-phase commit; replicate without option 'two_phase'"),
        (b"p", False, "Stream Prepare belongs to two-phase commit"),
    ],
)
def test_a_refusal_says_what_was_wrong(frame: bytes, streaming: bool, told: str) -> None:
    with pytest.raises(MalformedChange, match=re.escape(told)):
        decode(frame, streaming=streaming)


def test_whether_a_frame_stands_in_a_stream_is_not_told_by_the_frame() -> None:
    frame = encoded(Truncate((), cascade=False, restart_identity=False, xid=0))
    assert decode(frame, streaming=True) == Truncate((), cascade=False, restart_identity=False, xid=0)
    with pytest.raises(MalformedChange, match="Truncate goes on"):
        decode(frame, streaming=False)


@pytest.mark.parametrize(
    ("lsn", "text"), [(0, "0/0"), (0x16_B374_D848, "16/B374D848"), (2**64 - 1, "FFFFFFFF/FFFFFFFF")]
)
def test_an_lsn_is_written_as_postgres_writes_it(lsn: int, text: str) -> None:
    assert lsn_text(lsn) == text
