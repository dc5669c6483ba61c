"""Ids for producers: no two are the same, and none is one that a cluster gives out itself."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.producer_ids import FIRST, PART, PARTS, minted, part

CLUSTERS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_", min_size=22, max_size=22)
IDS = st.one_of(st.integers(0, PART - 1), st.sampled_from([0, 1, 999, PART - 1]))
LARGEST = (1 << 63) - 1


@given(CLUSTERS, st.lists(IDS, unique=True, max_size=20))
def test_ids_of_different_producers_are_never_the_same(cluster_id: str, given_out: list[int]) -> None:
    assert len({minted(cluster_id, one) for one in given_out}) == len(given_out)


@given(CLUSTERS, CLUSTERS, IDS, IDS)
def test_ids_of_clusters_with_different_parts_are_never_the_same(one: str, other: str, mine: int, yours: int) -> None:
    if part(one) != part(other):
        assert minted(one, mine) != minted(other, yours)


@given(CLUSTERS, IDS)
def test_an_id_lies_above_all_that_clusters_give_out_and_fits_into_eight_bytes(cluster_id: str, given_out: int) -> None:
    assert FIRST <= minted(cluster_id, given_out) <= LARGEST
    assert minted(cluster_id, given_out) >= FIRST > given_out


def test_parts_are_spread_over_all_there_are() -> None:
    parts = Counter(part(f"cluster-{number}") for number in range(2000))
    assert max(parts.values()) == 1
    assert max(parts) > PARTS * 0.99
    assert min(parts) < PARTS * 0.01


def test_a_cluster_has_the_same_part_in_every_release() -> None:
    assert part("MkU3OEVBNTcwNTJENDM2Qk") == 4627940


@pytest.mark.parametrize("producer_id", [-1, PART])
def test_what_does_not_fit_is_refused_and_meets_nobody_elses(producer_id: int) -> None:
    with pytest.raises(ValueError, match=f"producer id {producer_id} of cluster east does not fit"):
        minted("east", producer_id)
