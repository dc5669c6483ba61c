"""Shards: their ranges are all hash keys, each once, and a key is always of the same one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.shards import HASH_KEYS, Shards, even_ranges, hash_from, hashes_of

counts = st.integers(1, 5000)
hash_keys = st.integers(0, HASH_KEYS - 1)


@given(counts)
def test_the_ranges_of_a_stream_are_all_hash_keys_each_once(count: int) -> None:
    ranges = even_ranges(count)
    assert len(ranges) == count
    assert (ranges[0].first, ranges[-1].last) == (0, HASH_KEYS - 1)
    assert all(left.last + 1 == right.first for left, right in pairwise(ranges))


@given(counts)
def test_no_range_is_wider_than_another_by_more_than_the_number_of_shards(count: int) -> None:
    widths = {each.last - each.first for each in even_ranges(count)}
    assert max(widths) - min(widths) < count


@given(st.integers(1, 64), hash_keys)
def test_a_hash_key_is_of_the_shard_whose_range_it_is_in(count: int, hash_key: int) -> None:
    ranges = even_ranges(count)
    (index,) = Shards(ranges).of([hash_from(hash_key)])
    assert ranges[index].first <= hash_key <= ranges[index].last


@given(st.integers(1, 64))
def test_both_ends_of_a_range_are_of_its_shard(count: int) -> None:
    ranges = even_ranges(count)
    shards = Shards(ranges)
    assert shards.of(hash_from(each.first) for each in ranges) == list(range(count))
    assert shards.of(hash_from(each.last) for each in ranges) == list(range(count))


def test_a_key_has_the_hash_key_that_kinesis_gives_it() -> None:
    (hash_key,) = hashes_of([b"a"])
    assert int.from_bytes(hash_key, "big") == int("0cc175b9c0f1b6a831c399e269772661", 16)


def test_the_ranges_of_three_shards_are_those_of_kinesis() -> None:
    assert [each.first for each in even_ranges(3)] == [
        0,
        113427455640312821154458202477256070485,
        226854911280625642308916404954512140970,
    ]


@pytest.mark.parametrize("number", [-1, HASH_KEYS])
def test_what_is_no_hash_key_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="is no hash key"):
        hash_from(number)


def test_a_stream_has_a_shard() -> None:
    with pytest.raises(ValueError, match="a stream of 0 shards"):
        even_ranges(0)
