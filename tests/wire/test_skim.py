"""Answers that pass are changed in node ids only, in whatever pieces they come, and nothing in them leads astray."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId

from strandline.errors import MalformedFrame
from strandline.wire.kafka_frames import ANSWER_HEAD, FETCH, PRODUCE, answer_type, decode_answer
from strandline.wire.retyped import Changes, retyped
from strandline.wire.skim import LONGEST_TAG, Seen, Skim, fetched, produced
from tests.wire.entities import entity, framed, with_unknown_tags

SHIFT = 3_000_000
EVERY_VERSION = [(FETCH, version) for version in range(4, 19)] + [(PRODUCE, version) for version in range(3, 14)]
CHANCE = st.builds(random.Random, st.integers(0, 1 << 32))
NODES = (-2, -1, 0, 1, 1001, 999_999)


def answer(api_key: int, version: int, chance: random.Random) -> Any:
    """An answer with brokers as a cluster can have them."""

    def node(chance: random.Random) -> Any:
        return BrokerId(chance.choice(NODES))

    kind = answer_type(api_key, version)
    return entity(kind, chance, most=3, node_id=node, leader_id=node, preferred_read_replica=node)


def header(api_key: int, version: int) -> Any:
    return answer_type(api_key, version).__header_schema__(correlation_id=1)


def fed(frame: bytes, api_key: int, version: int, chance: random.Random) -> tuple[bytes, Seen]:
    """What goes on of a frame, and what was seen.

    An answer to Fetch comes in pieces, and bytes that were not taken come again; one to Produce comes whole.
    """
    seen = Seen(SHIFT)
    if api_key == PRODUCE:
        whole = bytearray(frame)
        produced(memoryview(whole), version, seen)
        return bytes(whole), seen
    skim = Skim(fetched(version, seen))
    gone, waiting, at = frame[: ANSWER_HEAD.size], b"", ANSWER_HEAD.size
    largest = chance.choice((1, 3, 40, len(frame)))
    while at < len(frame):
        size = chance.randrange(1, largest + 1)
        scratch = bytearray(waiting + frame[at : at + size])
        at += size
        taken = skim.feed(memoryview(scratch))
        assert 0 <= taken <= len(scratch)
        assert len(scratch) - taken < LONGEST_TAG
        gone, waiting = gone + scratch[:taken], bytes(scratch[taken:])
        # Somebody else's answers come into the same buffer.
        scratch[:] = b"\xee" * len(scratch)
    return gone, seen


def errors(value: Any) -> Iterator[int]:
    """The errors that stand anywhere in an answer."""
    if isinstance(value, ErrorCode):
        yield value.value
    elif isinstance(value, tuple):
        for one in value:
            yield from errors(one)
    elif hasattr(value, "__version__"):
        for name in type(value).__slots__:
            yield from errors(getattr(value, name))


def shifted(node: Any) -> Any:
    return BrokerId(node + SHIFT) if node >= 0 else node


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
@settings(max_examples=20)
@given(chance=CHANCE)
def test_an_answer_in_any_pieces_goes_on_at_its_length_with_nodes_shifted_and_no_addresses(
    api_key: int, version: int, chance: random.Random
) -> None:
    sent = answer(api_key, version, chance)
    body = with_unknown_tags(sent, chance) if chance.random() < 0.5 else sent
    head = with_unknown_tags(header(api_key, version), chance) if body is not sent else header(api_key, version)
    frame = framed(head, body)
    gone, seen = fed(frame, api_key, version, chance)
    assert len(gone) == len(frame)
    expected = retyped(sent, Changes(node=shifted, topic=lambda name: name))
    if hasattr(sent, "node_endpoints"):
        expected = replace(expected, node_endpoints=())
    assert decode_answer(memoryview(gone), api_key, version) == expected
    assert seen.errors == set(errors(sent)) - {0}


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
@settings(max_examples=20)
@given(chance=CHANCE, places=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=6), cut=st.integers(0))
def test_a_damaged_answer_is_refused_or_waited_for(
    api_key: int, version: int, chance: random.Random, places: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(framed(header(api_key, version), answer(api_key, version, chance)))
    for place, byte in places:
        frame[place % len(frame)] = byte
    del frame[len(frame) - cut % len(frame) :]
    refused_or_waited_for(bytes(frame), api_key, version, chance)


@settings(max_examples=150)
@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=80), CHANCE)
@example((FETCH, 4), b"\0\0\0\0" + b"\x7f\xff\xff\xff" * 6, random.Random(1))
@example((FETCH, 4), b"\0\0\0\0" + b"\x80\0\0\0" * 6, random.Random(1))
@example((FETCH, 4), b"\0\0\0\0\0\0\0\1\xff\xfe" + bytes(40), random.Random(1))
@example((FETCH, 12), b"\0" * 11 + b"\xff\xff\xff\xff\x0f" * 9, random.Random(1))
@example((PRODUCE, 9), b"\0" + b"\xff\xff\xff\xff\xff\x01" * 9, random.Random(1))
def test_random_bytes_are_refused_or_waited_for(of: tuple[int, int], body: bytes, chance: random.Random) -> None:
    refused_or_waited_for(ANSWER_HEAD.pack(len(body) + 4, 1) + body, *of, chance)


def refused_or_waited_for(frame: bytes, api_key: int, version: int, chance: random.Random) -> None:
    try:
        gone, _ = fed(frame, api_key, version, chance)
    except MalformedFrame:
        return
    assert len(gone) <= len(frame)


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
@pytest.mark.parametrize("more", [1, 2, 9])
def test_bytes_behind_the_end_of_an_answer_are_refused_in_whatever_pieces_they_come(
    api_key: int, version: int, more: int
) -> None:
    frame = framed(header(api_key, version), answer(api_key, version, random.Random(version)))
    for seed in range(8):
        with pytest.raises(MalformedFrame, match="behind the end"):
            fed(frame + bytes(more), api_key, version, random.Random(seed))


@pytest.mark.parametrize(("api_key", "version"), [(FETCH, 11), (FETCH, 16), (PRODUCE, 10)])
def test_a_node_that_has_no_room_in_its_block_is_refused(api_key: int, version: int) -> None:
    frame = framed(header(api_key, version), entity_with_node(api_key, version, (1 << 31) - 1))
    with pytest.raises(MalformedFrame, match="node 2147483647"):
        fed(frame, api_key, version, random.Random(0))


def entity_with_node(api_key: int, version: int, node: int) -> Any:
    for seed in range(100):
        one = entity(
            answer_type(api_key, version),
            random.Random(seed),
            leader_id=lambda _: BrokerId(node),
            preferred_read_replica=lambda _: BrokerId(node),
        )
        if str(node) in str(one):
            return one
    raise AssertionError
