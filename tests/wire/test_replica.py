"""Who claims to be a replica is found in every request that can say so, in whatever pieces it comes."""

import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kio.schema.fetch.v17.request import FetchRequest, ReplicaState
from kio.schema.types import BrokerId
from kio.static.primitive import i64

from strandline.errors import MalformedFrame
from strandline.proxy.rules.table import OURS
from strandline.wire.kafka_frames import FETCH, SIZE, decode_request, encode_request, read_head, request_type
from strandline.wire.replica import claimed, first_replica, last_replica, refuse_replica
from tests.wire.entities import REQUESTS, entity, framed, hints, parts, with_unknown_tags

CHANCE = st.builds(random.Random, st.integers(0, 1 << 32))
REPLICAS = st.sampled_from([-(1 << 31), -2, -1, 0, 1, 1001, (1 << 31) - 1])
AT_THE_END = [(FETCH, version) for version in range(15, 19)]


def may_claim(kind: Any) -> bool:
    """Whether a field of a type, however deep, is the id of the replica that asks."""
    nested = [part for each in fields(kind) for part in parts(hints(kind)[each.name]) if is_dataclass(part)]
    return any(each.name == "replica_id" for each in fields(kind)) or any(may_claim(part) for part in nested)


CLAIMING = [(key, version) for key, version in REQUESTS if key in OURS and may_claim(request_type(key, version))]


def asked(of: tuple[int, int], replica: int, chance: random.Random) -> tuple[Any, bytes]:
    """A request of a replica and its frame, that of a newer client at times."""
    kind = request_type(*of)
    request = entity(kind, chance, most=3, replica_id=lambda _: BrokerId(replica))
    if of in AT_THE_END:
        state = type(request.replica_state)(replica_id=BrokerId(replica), replica_epoch=i64(chance.choice((-1, 7))))
        request = replace(request, replica_state=state, cluster_id=chance.choice((None, "", "a", "x" * 100)))
    if chance.random() < 0.5:
        return request, encode_request(request, 7, "c")
    header = kind.__header_schema__(request_api_key=of[0], request_api_version=of[1], correlation_id=7, client_id="c")
    newer = with_unknown_tags(request, chance)
    if of in AT_THE_END:
        # Within the field of a replica no client has another.
        newer = replace(newer, replica_state=replace(newer.replica_state, unknown=None, unknown_too=None))
    return request, framed(with_unknown_tags(header, chance), newer)


def passed(frame: bytes, chance: random.Random) -> bytes:
    """What goes on of a frame that comes in pieces, as a session lets it."""
    head = read_head(memoryview(frame))
    assert head is not None
    first = first_replica(memoryview(frame), head)
    assert first is not None
    refuse_replica(first, head.name)
    skim = last_replica(head)
    if skim is None:
        return frame
    gone, waiting, at = b"", b"", 0
    largest = chance.choice((1, 3, 40, len(frame)))
    while at < len(frame):
        size = chance.randrange(1, largest + 1)
        there = waiting + frame[at : at + size]
        at += size
        taken = skim.feed(memoryview(there))
        gone, waiting = gone + there[:taken], there[taken:]
    if waiting or not skim.is_done:
        raise MalformedFrame("a request that ends too early")
    return gone


def test_the_requests_that_name_a_replica_are_these() -> None:
    assert {key for key, _ in CLAIMING} == {1, 2, 23}
    assert set(AT_THE_END) < set(CLAIMING)


@pytest.mark.parametrize("of", CLAIMING)
@settings(max_examples=20)
@given(replica=REPLICAS, chance=CHANCE)
def test_a_request_goes_on_whole_if_and_only_if_no_replica_asks(
    of: tuple[int, int], replica: int, chance: random.Random
) -> None:
    request, frame = asked(of, replica, chance)
    assert claimed(request) == replica
    if replica >= 0:
        with pytest.raises(MalformedFrame, match=f"of replica {replica}, which no client is"):
            passed(frame, chance)
    else:
        assert passed(frame, chance) == frame


@settings(max_examples=200)
@given(st.sampled_from(AT_THE_END), CHANCE, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_what_goes_on_of_a_damaged_fetch_names_no_replica_to_who_reads_it_all(
    of: tuple[int, int], chance: random.Random, places: list[tuple[int, int]]
) -> None:
    damaged = bytearray(asked(of, chance.choice((-1, 0, 5)), chance)[1])
    start = read_head(memoryview(damaged))
    assert start is not None
    for place, byte in places:
        damaged[start.body + place % (len(damaged) - start.body)] = byte
    try:
        gone = passed(bytes(damaged), chance)
        request = decode_request(memoryview(gone), start)
    except MalformedFrame:
        return
    assert claimed(request) < 0


def fetch_that_ends_with(tags: bytes) -> bytes:
    """A Fetch 17 with these tagged fields."""
    plain = entity(
        FetchRequest,
        random.Random(3),
        most=2,
        cluster_id=lambda _: None,
        replica_state=lambda _: ReplicaState(),
        rack_id=lambda _: "",
    )
    frame = encode_request(plain, 7, "c")[:-1] + tags
    return SIZE.pack(len(frame) - SIZE.size) + frame[SIZE.size :]


REPLICA_5 = b"\0\0\0\5" + bytes(8) + b"\0"


@pytest.mark.parametrize(
    "tags",
    [
        b"\1\1\x0d" + REPLICA_5,
        b"\1\x81\0\x0d" + REPLICA_5,
        b"\1\x81\x80\x80\x80\x10\x0d" + REPLICA_5,
        b"\2\1\x0d\xff\xff\xff\xff" + bytes(9) + b"\1\x0d" + REPLICA_5,
        # A cluster's id of no letters, and behind it what only who goes by its size passes over.
        b"\2\0\x10\1\1\x0d" + REPLICA_5,
        b"\1\1\x0e\xff\xff\xff\xff" + bytes(10),
        b"\1\1\x04\xff\xff\xff\xff",
        b"\1\1\0",
        b"\x81\0\1\x0d" + REPLICA_5,
    ],
    ids=["plain", "two-bytes", "33-bits", "twice", "behind", "longer", "shorter", "empty", "count"],
)
def test_no_way_to_write_the_last_fields_hides_a_replica(tags: bytes) -> None:
    assert passed(fetch_that_ends_with(b"\0"), random.Random(1)) == fetch_that_ends_with(b"\0")
    with pytest.raises(MalformedFrame):
        passed(fetch_that_ends_with(tags), random.Random(1))


@settings(max_examples=100)
@given(st.sampled_from(AT_THE_END), CHANCE, st.binary(min_size=1, max_size=40))
@example((FETCH, 15), random.Random(1), b"\xff" * 40)
def test_bytes_behind_the_end_are_refused(of: tuple[int, int], chance: random.Random, more: bytes) -> None:
    frame = asked(of, -1, chance)[1] + more
    with pytest.raises(MalformedFrame):
        passed(SIZE.pack(len(frame) - SIZE.size) + frame[SIZE.size :], chance)


@pytest.mark.parametrize("of", sorted(set(CLAIMING) - set(AT_THE_END)))
def test_the_first_field_is_waited_for_and_one_that_is_not_whole_is_refused(of: tuple[int, int]) -> None:
    frame = asked(of, -1, random.Random(1))[1]
    head = read_head(memoryview(frame))
    assert head is not None
    for there in range(head.body, head.body + 4):
        assert first_replica(memoryview(frame)[:there], head) is None
        cut = head._replace(size=there - SIZE.size)
        with pytest.raises(MalformedFrame, match="ends before"):
            first_replica(memoryview(frame), cut)
