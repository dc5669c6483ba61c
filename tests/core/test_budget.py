"""The bounds of what is in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.budget import Budget

moves = st.lists(st.one_of(st.tuples(st.just("in"), st.integers(0, 30)), st.tuples(st.just("out"), st.integers(0, 60))))


@given(st.integers(1, 6), st.integers(1, 60), moves)
def test_neither_bound_is_passed_but_by_one_item_alone(
    max_items: int, max_bytes: int, moves: list[tuple[str, int]]
) -> None:
    budget: Budget[int] = Budget(max_items=max_items, max_bytes=max_bytes)
    inside: dict[int, int] = {}
    for name, (move, number) in enumerate(moves):
        if move == "in":
            fits = len(inside) < max_items and sum(inside.values()) + number <= max_bytes
            assert budget.admit(name, number) == (fits or not inside)
            if fits or not inside:
                inside[name] = number
        else:
            budget.release(number)
            inside.pop(number, None)
        assert (budget.items, budget.bytes) == (len(inside), sum(inside.values()))
        assert budget.items <= max_items
        assert budget.bytes <= max_bytes or budget.items == 1


def test_an_item_is_in_flight_once() -> None:
    budget: Budget[str] = Budget(max_items=2, max_bytes=10)
    assert budget.admit("a", 1)
    with pytest.raises(ValueError, match="'a' is in flight already"):
        budget.admit("a", 1)


@pytest.mark.parametrize(("items", "size"), [(0, 1), (1, 0)])
def test_a_budget_for_nothing_is_refused(items: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one item and one byte"):
        Budget(max_items=items, max_bytes=size)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        Budget[str](max_items=1, max_bytes=1).admit("a", -1)
