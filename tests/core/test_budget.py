"""The bound of what is in flight, and that nobody waits without end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.budget import Budget

PIECE = 8
CHANCE = st.builds(random.Random, st.integers(0, 1 << 32))
SIZES = st.lists(st.integers(1, 60), max_size=12)


@given(st.integers(1, 60), SIZES, CHANCE)
def test_all_but_the_eldest_are_above_the_bound_by_less_than_a_piece_and_all_come_to_their_end(
    max_bytes: int, sizes: list[int], chance: random.Random
) -> None:
    budget: Budget[int] = Budget(max_bytes=max_bytes)
    left = dict(enumerate(sizes))
    came: dict[int, int] = {}
    while left:
        going = [name for name in left if budget.may_grow(name)]
        # Whichever is the next to come, there is one that may.
        assert going
        name = chance.choice(going)
        piece = min(chance.randrange(1, PIECE + 1), left[name])
        budget.grow(name, piece)
        left[name] -= piece
        came[name] = came.get(name, 0) + piece
        eldest = next(iter(came))
        assert budget.bytes == sum(came.values())
        assert budget.bytes - came[eldest] < max_bytes + PIECE
        if not left[name]:
            assert budget.release(name)
            del left[name], came[name]
    assert budget.bytes == 0


@given(st.integers(1, 60), st.integers(0, 100))
def test_one_of_which_nothing_has_come_takes_nothing_and_waits_only_while_the_bound_is_reached(
    max_bytes: int, others: int
) -> None:
    budget: Budget[str] = Budget(max_bytes=max_bytes)
    budget.grow("eldest", others)
    assert budget.may_grow("new") == (others < max_bytes)
    assert budget.may_grow("eldest")
    assert budget.bytes == others


def test_what_is_not_in_flight_is_released_by_nobody() -> None:
    budget: Budget[str] = Budget(max_bytes=10)
    budget.grow("a", 4)
    assert [budget.release("a"), budget.release("a"), budget.release("b")] == [True, False, False]
    assert budget.bytes == 0


def test_a_budget_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        Budget(max_bytes=0)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        Budget[str](max_bytes=1).grow("a", -1)
