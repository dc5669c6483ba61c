"""The endpoint's streams: all that was accepted and nothing else, in order, never more than may be kept."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.shards import hashes_of
from strandline.stack.endpoint.faults import Throttle
from strandline.stack.endpoint.streams import RECORD_OVERHEAD, Moment, Stream, Streams
from strandline.units import Nanos
from strandline.wire.kinesis import Entry, Refused

NOW = Moment(1_700_000_000_000, Nanos(0))
entries = st.builds(Entry, data=st.binary(max_size=20), partition_key=st.text(min_size=1, max_size=5))
requests = st.lists(st.lists(entries, min_size=1, max_size=8), max_size=6)


def made(keep_bytes: int, shards: int) -> tuple[Streams, Stream]:
    streams = Streams(keep_bytes)
    return streams, streams.create("s", shards, NOW, mode="PROVISIONED")


@given(requests, st.integers(1, 5))
def test_what_is_accepted_is_kept_in_order_each_in_the_shard_of_its_key(
    requests: list[list[Entry]], shards: int
) -> None:
    streams, stream = made(1 << 20, shards)
    told: dict[str, list[str]] = {shard.shard_id: [] for shard in stream.shards}
    sent: dict[str, list[Entry]] = {shard.shard_id: [] for shard in stream.shards}
    for request in requests:
        failed, results = streams.put(stream, request, NOW)
        assert failed == 0
        for entry, result in zip(request, json.loads(b"[%b]" % results), strict=True):
            told[result["ShardId"]].append(result["SequenceNumber"])
            sent[result["ShardId"]].append(entry)
    for shard in stream.shards:
        assert shard.entries == sent[shard.shard_id]
        assert [shard.sequence_number(n) for n in range(shard.first, shard.next)] == told[shard.shard_id]
        assert all(int(left) < int(right) for left, right in pairwise(told[shard.shard_id]))
        for hash_key in hashes_of(entry.partition_key.encode() for entry in shard.entries):
            assert shard.hashes.first <= int.from_bytes(hash_key, "big") <= shard.hashes.last


@given(requests, st.integers(1, 20_000))
def test_never_more_is_kept_than_may_be_and_a_request_is_refused_whole(
    requests: list[list[Entry]], keep_bytes: int
) -> None:
    streams, stream = made(keep_bytes, 2)
    kept: list[Entry] = []
    for request in requests:
        size = sum(len(e.data) + len(e.partition_key.encode()) + RECORD_OVERHEAD for e in request)
        before = streams.kept_bytes
        try:
            streams.put(stream, request, NOW)
        except Refused as refused:
            assert refused.code == "EndpointFull"
            assert before + size > keep_bytes
            assert streams.kept_bytes == before
        else:
            kept += request
            assert streams.kept_bytes == before + size <= keep_bytes
    assert sum(len(shard.entries) for shard in stream.shards) == len(kept) == stream.counts.records
    streams.delete("s")
    assert streams.kept_bytes == 0


@given(requests)
def test_one_that_keeps_nothing_answers_as_one_that_keeps_all(requests: list[list[Entry]]) -> None:
    (keeping, stream), (counting, other) = made(1 << 20, 3), made(0, 3)
    for request in requests:
        assert keeping.put(stream, request, NOW) == counting.put(other, request, NOW)
    assert stream.counts == other.counts
    assert not any(shard.entries for shard in other.shards)
    assert counting.kept_bytes == 0


@given(requests, st.sets(st.integers(0, 199)))
def test_a_record_that_fails_is_not_kept_and_takes_no_number(requests: list[list[Entry]], hit: set[int]) -> None:
    (streams, stream), (well, other) = made(1 << 20, 2), made(1 << 20, 2)
    numbers = iter(range(200))
    struck = iter(range(200))
    for request in requests:
        fails = lambda: "InternalFailure" if next(numbers) in hit else None  # noqa: E731
        failed, results = streams.put(stream, request, NOW, fails=fails)
        passed = [entry for entry in request if next(struck) not in hit]
        assert failed == len(request) - len(passed) == results.count(b"ErrorCode")
        if passed:
            well.put(other, passed, NOW)
    assert [shard.entries for shard in stream.shards] == [shard.entries for shard in other.shards]
    assert stream.counts.bytes == other.counts.bytes
    assert streams.kept_bytes == well.kept_bytes


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 10), st.integers(1, 100))
def test_pages_are_the_whole_shard_each_within_its_bounds(sizes: list[int], records: int, size: int) -> None:
    streams, stream = made(1 << 20, 1)
    for each in sizes:
        streams.put(stream, [Entry(b"x" * each, "k")], NOW)
    (shard,) = stream.shards
    at, found = 0, []
    while (page := shard.page(at, records=records, size=size))[0] < page[1]:
        start, at = page
        part = shard.entries[start - shard.first : at - shard.first]
        assert len(part) <= records
        assert len(part) == 1 or sum(len(entry.data) + 1 for entry in part) <= size
        found += part
    assert found == shard.entries


def test_a_throttled_stream_takes_of_each_shard_what_it_may() -> None:
    streams, stream = made(0, 2)
    stream.throttle(Throttle(records_per_s=3), Nanos(0))
    request = [Entry(b"", str(n)) for n in range(100)]
    assert streams.put(stream, request, NOW)[0] == 94
    assert streams.put(stream, request, Moment(NOW.ms, Nanos(10**9)))[0] == 94
    assert (stream.counts.records, stream.counts.throttled_records) == (12, 188)
    stream.throttle(None, Nanos(0))
    assert streams.put(stream, request, NOW)[0] == 0


def test_there_are_no_more_shards_than_may_be() -> None:
    streams, _ = made(0, 9_999)
    streams.create("last", 1, NOW, mode="PROVISIONED")
    with pytest.raises(Refused, match="at most 10000 shards"):
        streams.create("more", 1, NOW, mode="PROVISIONED")
