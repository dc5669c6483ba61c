"""Frames of Kafka are read right in whatever pieces they come, and what is none is refused: it ends nothing else."""

import random
import struct
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.metadata.v12.request import MetadataRequest

from strandline.errors import MalformedFrame
from strandline.wire.kafka_frames import (
    HEAD,
    LONGEST_NAME,
    MOST_REMEMBERED,
    SIZE,
    Head,
    _has_tags,
    answer_type,
    api_name,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    first_string,
    read_head,
    request_type,
    versions_known,
)
from tests.wire.entities import REQUESTS, TEXTS, entity, framed, with_unknown_tags

CHANCE = st.builds(random.Random, st.integers(0, 1 << 32))
CLIENT_IDS = st.one_of(st.none(), st.sampled_from(TEXTS), st.text(max_size=20))
# Produce, JoinGroup, Heartbeat, LeaveGroup, SyncGroup, InitProducerId, EndTxn
BEGIN_WITH_A_NAME = [(key, version) for key in (0, 11, 12, 13, 14, 22, 26) for version in versions_known(key)]
HUGE = (b"\xff\x7f", b"\xff\xff\x7f", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f")
LIES = (*HUGE, b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"", b"\0", b"\xff")
METADATA = 3


def request_frame(key: int, version: int, chance: random.Random, client_id: str | None) -> tuple[Any, bytes]:
    """A request and its frame, that of a newer client with tagged fields of its own at times."""
    request = entity(request_type(key, version), chance)
    if chance.random() < 0.5:
        return request, encode_request(request, 77, client_id)
    header = request.__header_schema__(
        request_api_key=key, request_api_version=version, correlation_id=77, client_id=client_id
    )
    return request, framed(with_unknown_tags(header, chance), with_unknown_tags(request, chance))


@settings(max_examples=150)
@given(st.sampled_from(REQUESTS), CHANCE, CLIENT_IDS)
@example((18, 0), random.Random(1), "client")
@example((16, 0), random.Random(1), "client")
def test_a_head_is_read_as_soon_as_it_is_whole_and_never_before(
    of: tuple[int, int], chance: random.Random, client_id: str | None
) -> None:
    request, frame = request_frame(*of, chance, client_id)
    next_one = b"\0\0\0\x40" + bytes(60)
    head = read_head(memoryview(frame + next_one))
    assert head is not None
    assert (head.api_key, head.version) == of
    assert (head.correlation_id, head.client_id, head.frame) == (77, client_id, len(frame))
    assert head.name == api_name(of[0])
    for cut in range(min(len(frame), head.body + 4)):
        found = read_head(memoryview(frame)[:cut])
        assert found == (None if cut < head.body or found is None else head)
        assert found is not None or cut <= head.body
    assert decode_request(memoryview(frame), head) == request


@pytest.mark.parametrize(("key", "version"), BEGIN_WITH_A_NAME)
def test_the_name_that_a_request_begins_with_is_read_as_soon_as_it_is_whole(key: int, version: int) -> None:
    for seed in range(6):
        request, frame = request_frame(key, version, random.Random(seed), "c")
        head = read_head(memoryview(frame))
        assert head is not None
        name = request.transactional_id if hasattr(request, "transactional_id") else request.group_id
        found = first_string(memoryview(frame), head)
        assert found is not None
        assert found[0] == name
        for cut in range(head.body, len(frame)):
            part = first_string(memoryview(frame)[:cut], head)
            assert part == (found if cut >= found[1] else None)
        if key == 0:
            (acks,) = struct.unpack_from(">h", frame, found[1])
            assert acks == request.acks


@pytest.mark.parametrize(("key", "version"), REQUESTS)
def test_every_request_and_answer_is_read_as_it_was_written(key: int, version: int) -> None:
    for seed in range(2):
        chance = random.Random(seed)
        request, frame = request_frame(key, version, chance, "c")
        head = read_head(memoryview(frame))
        assert head is not None
        assert decode_request(memoryview(frame), head) == request
        answer = entity(answer_type(key, version), chance)
        assert decode_answer(memoryview(encode_answer(answer, 5)), key, version) == answer
        header = with_unknown_tags(answer.__header_schema__(correlation_id=5), chance)
        assert decode_answer(memoryview(framed(header, with_unknown_tags(answer, chance))), key, version) == answer


@settings(max_examples=200)
@given(st.binary(max_size=60), st.sampled_from(REQUESTS), st.booleans())
def test_random_bytes_are_refused_or_read_and_nothing_else(body: bytes, of: tuple[int, int], is_request: bool) -> None:
    start = struct.pack(">hhih", *of, 1, -1) if is_request else b"\0\0\0\1"
    read_or_refused(bytearray(SIZE.pack(len(start) + len(body)) + start + body), of, is_request)
    read_or_refused(bytearray(body), of, is_request)


@settings(max_examples=200)
@given(st.sampled_from(REQUESTS), CHANCE, st.booleans(), st.integers(0), st.sampled_from(LIES))
def test_a_damaged_frame_is_refused_or_read_and_takes_no_more_memory_than_it_has(
    of: tuple[int, int], chance: random.Random, is_request: bool, place: int, lie: bytes
) -> None:
    kind = (request_type if is_request else answer_type)(*of)
    whole = entity(kind, chance)
    frame = bytearray(encode_request(whole, 1, None) if is_request else encode_answer(whole, 1))
    at = 8 + place % (len(frame) - 7)
    frame[at : at + len(lie)] = lie
    if not lie:
        del frame[at:]
    SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
    read_or_refused(frame, of, is_request)


def read_or_refused(frame: bytearray, of: tuple[int, int], is_request: bool) -> None:
    """kio takes memory for what a length says, and the process ends that asks for too much: that would fail here."""
    view = memoryview(frame)
    try:
        if not is_request:
            decode_answer(view, *of)
        elif (head := read_head(view)) is not None and head.version in versions_known(head.api_key):
            first_string(view, head)
            decode_request(view[: head.frame], head)
    except MalformedFrame:
        pass


@pytest.mark.parametrize("count", HUGE)
def test_a_list_of_more_items_than_there_are_bytes_is_refused_before_room_is_made_for_it(count: bytes) -> None:
    head = struct.pack(">hhihb", METADATA, 12, 1, -1, 0)
    frame = memoryview(SIZE.pack(len(head) + len(count) + 9) + head + count + bytes(9))
    found = read_head(frame)
    assert found is not None
    with pytest.raises(MalformedFrame, match=r"metadata 12 cannot be read: .* items in 9 bytes"):
        decode_request(frame, found)


@pytest.mark.parametrize(
    ("size", "name_size", "why"),
    [
        (-1, 1, "a request of -1 bytes"),
        (9, -1, "a request of 9 bytes"),
        (10, 1, "a client id of 1 bytes"),
        (LONGEST_NAME * 2, LONGEST_NAME + 1, "a client id of 8193 bytes"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size: int, name_size: int, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        read_head(memoryview(HEAD.pack(size, METADATA, 0, 1, name_size)))


@pytest.mark.parametrize("tags", [b"\x01\x00\x05", b"\x01\x00\x7f", b"\xff\x7f", b"\x80\x80\x80\x80\x80\x01"])
def test_tags_of_a_header_that_reach_behind_its_frame_are_refused(tags: bytes) -> None:
    head = struct.pack(">hhih", METADATA, 12, 1, -1) + tags
    frame = SIZE.pack(len(head)) + head + bytes(300)
    with pytest.raises(MalformedFrame):
        read_head(memoryview(frame))


@pytest.mark.parametrize("version", [0, 4])
def test_a_name_that_reaches_behind_its_frame_is_refused(version: int) -> None:
    name = b"\0\x09" if version == 0 else b"\x0a"
    header = struct.pack(">hhih", 12, version, 1, -1) + (b"" if version == 0 else b"\0")
    body = name + b"group"
    frame = memoryview(SIZE.pack(len(header) + len(body)) + header + body + bytes(30))
    head = read_head(frame)
    assert head is not None
    with pytest.raises(MalformedFrame, match="ends within the name"):
        first_string(frame, head)
    assert first_string(frame[: head.body + 1], head) is None


def test_a_header_with_more_in_its_tags_than_any_name_is_refused_however_it_comes() -> None:
    size = LONGEST_NAME + 10
    head = struct.pack(">hhih", METADATA, 12, 1, -1)
    tags = b"\x01\x09" + bytes([size & 0x7F | 0x80, size >> 7]) + bytes(size)
    frame = SIZE.pack(len(head) + len(tags) + 6) + head + tags + bytes(6)
    for there in (len(frame), len(frame) - 8, LONGEST_NAME + 20):
        with pytest.raises(MalformedFrame, match="does not end"):
            read_head(memoryview(frame)[:there])


def test_an_api_that_is_not_known_has_a_head_all_the_same() -> None:
    frame = SIZE.pack(12) + struct.pack(">hhih", 999, 3, 5, 2) + b"ab"
    assert read_head(memoryview(frame)) == Head(12, 999, 3, 5, "ab", len(frame))
    assert len(versions_known(999)) == 0


def test_nothing_is_remembered_for_each_api_and_version_that_somebody_names() -> None:
    known = len(REQUESTS)
    assert known < MOST_REMEMBERED
    for number in range(3 * MOST_REMEMBERED):
        head = read_head(memoryview(HEAD.pack(11, number % 30_000, number % 20_000, 1, -1) + b"\0"))
        assert head is not None
    assert _has_tags.cache_info().currsize <= MOST_REMEMBERED
    assert versions_known.cache_info().currsize <= MOST_REMEMBERED


def test_unknown_fields_without_end_are_refused() -> None:
    request = MetadataRequest(topics=(), include_topic_authorized_operations=False)
    frame = encode_request(request, 1, None)[:-1] + b"\x80\x80\x10" + b"\x5a\0" * 0x40000
    frame = SIZE.pack(len(frame) - SIZE.size) + frame[SIZE.size :]
    head = read_head(memoryview(frame))
    assert head is not None
    with pytest.raises(MalformedFrame, match="tagged fields that are not known"):
        decode_request(memoryview(frame), head)
