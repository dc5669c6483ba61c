"""Room: the bounds hold over all holders, and a holder that is gone takes with it what it held and no more."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from strandline.core.room import Room

HOLDERS = st.integers(0, 2)
ADDRESSES = st.sampled_from("abc")
doings = st.lists(st.tuples(st.sampled_from(["enter", "leave", "forget"]), HOLDERS, ADDRESSES), max_size=60)


@given(doings, st.integers(0, 8), st.integers(0, 4))
def test_the_bounds_hold_over_all_holders(doings: list[tuple[str, int, str]], most: int, per_address: int) -> None:
    room: Room[int] = Room(most=most, most_per_address=per_address)
    held: Counter[tuple[int, str]] = Counter()
    for doing, holder, address in doings:
        of_address = sum(count for (_, its), count in held.items() if its == address)
        if doing == "enter":
            has_room = held.total() < most and of_address < per_address
            assert room.enter(holder, address) == has_room
            held[holder, address] += has_room
        elif doing == "forget":
            room.forget(holder)
            held = Counter({key: count for key, count in held.items() if key[0] != holder})
        elif held[holder, address]:
            room.leave(holder, address)
            held[holder, address] -= 1
        assert room.total == held.total()


def test_nobody_leaves_who_is_not_in() -> None:
    room: Room[int] = Room(most=1, most_per_address=1)
    with pytest.raises(ValueError, match="does not hold"):
        room.leave(1, "a")
