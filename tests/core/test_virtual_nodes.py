"""One virtual node is one broker of one cluster, and no two are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.virtual_nodes import BLOCK, LARGEST_NODE, MOST_BLOCKS, Blocks
from strandline.errors import OptionError

NUMBERS = st.lists(st.integers(0, MOST_BLOCKS), min_size=1, max_size=5, unique=True)
NODES = st.one_of(st.integers(0, BLOCK - 1), st.sampled_from([0, 1, 999, 1000, BLOCK - 1]))


def blocks(numbers: list[int]) -> Blocks:
    return Blocks({f"cluster-{place}": number for place, number in enumerate(numbers)})


@given(NUMBERS, NODES)
def test_a_node_comes_back_from_outside_and_belongs_to_its_cluster(numbers: list[int], node: int) -> None:
    all_of_them = blocks(numbers)
    for cluster in all_of_them.numbers:
        seen = all_of_them.outside(cluster, node)
        assert 0 <= seen <= LARGEST_NODE
        assert all_of_them.inside(cluster, seen) == node
        assert all_of_them.owner(seen) == cluster
        assert seen == all_of_them.first(cluster) + node


@given(NUMBERS, NODES, NODES)
def test_no_two_nodes_are_the_same(numbers: list[int], one: int, other: int) -> None:
    all_of_them = blocks(numbers)
    mine = {
        (cluster, node): all_of_them.outside(cluster, node) for cluster in all_of_them.numbers for node in (one, other)
    }
    assert len(set(mine.values())) == len(mine)


@given(NUMBERS, NODES)
def test_a_node_of_another_cluster_is_none_of_this_one(numbers: list[int], node: int) -> None:
    all_of_them = blocks(numbers)
    for cluster in all_of_them.numbers:
        for other in all_of_them.numbers.keys() - {cluster}:
            assert not 0 <= all_of_them.inside(cluster, all_of_them.outside(other, node)) < BLOCK


@given(NUMBERS, st.integers(-(1 << 31), -1))
def test_what_is_no_node_stays_what_it_is_and_is_nobodys(numbers: list[int], none: int) -> None:
    all_of_them = blocks(numbers)
    for cluster in all_of_them.numbers:
        assert all_of_them.outside(cluster, none) == none
        assert all_of_them.inside(cluster, none) == none
    assert all_of_them.owner(none) is None


@given(NUMBERS, st.integers(0, LARGEST_NODE))
def test_an_id_has_an_owner_where_there_is_a_block_around_it(numbers: list[int], node: int) -> None:
    all_of_them = blocks(numbers)
    owner = all_of_them.owner(node)
    assert (owner is None) == (node // BLOCK not in numbers)
    if owner is not None:
        assert all_of_them.outside(owner, all_of_them.inside(owner, node)) == node


@given(NUMBERS, st.integers(0, MOST_BLOCKS), NODES)
def test_a_cluster_that_is_added_changes_nobodys_ids(numbers: list[int], added: int, node: int) -> None:
    before = blocks(numbers)
    if added not in numbers:
        after = Blocks({"added": added, **before.numbers})
        for cluster in before.numbers:
            assert after.outside(cluster, node) == before.outside(cluster, node)


def test_a_broker_that_does_not_fit_into_its_block_is_refused() -> None:
    with pytest.raises(OptionError, match="broker 1000000 of cluster east does not fit"):
        Blocks({"east": 0}).outside("east", BLOCK)


def test_two_clusters_in_one_block_are_refused() -> None:
    with pytest.raises(OptionError, match="clusters east and west both have block 3"):
        Blocks({"east": 3, "west": 3})


@pytest.mark.parametrize(("number", "width"), [(-1, BLOCK), (MOST_BLOCKS + 1, BLOCK), (2, 1 << 30)])
def test_a_block_that_no_id_fits_into_is_refused(number: int, width: int) -> None:
    with pytest.raises(OptionError, match=f"cluster east has block {number}"):
        Blocks({"east": number}, width)
    assert Blocks({"east": 1}, 1 << 30).outside("east", (1 << 30) - 1) == LARGEST_NODE
