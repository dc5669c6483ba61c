"""Turns: each name once in a while, and so many names of one owner, whatever the others do."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from strandline.core import turns as module
from strandline.core.turns import Turns

STEPS = st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("abcd"), st.floats(0, 5)), max_size=40)


@given(STEPS, st.floats(0.1, 10), st.integers(1, 4))
def test_a_name_goes_once_in_a_while_and_so_many_of_an_owner_and_each_waits_exactly_that_long(
    steps: list[tuple[str, str, float]], every: float, most: int
) -> None:
    turns = Turns(every, most_names=most)
    went: list[tuple[str, str, float]] = []
    now = 0.0
    for owner, name, passed in steps:
        now += passed
        lately = {its: again for whose, its, again in went if whose == owner and again > now}
        due = lately.get(name, min(lately.values()) if len(lately) >= most else now)
        assert turns.wait(owner, name, now) == due - now
        if due == now:
            turns.take(owner, name, now)
            went.append((owner, name, now + every))


def test_of_too_many_names_those_who_went_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_NAMES", 3)
    turns = Turns(10.0, most_names=9)
    for moment, owner in enumerate("vwxyz"):
        turns.take(owner, "a", float(moment))
    assert [turns.wait(owner, "a", 4.0) for owner in "vwxyz"] == [0, 0, 8, 9, 10]
