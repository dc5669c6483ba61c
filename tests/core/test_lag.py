"""How old the log is at a position: never more than it is, and about right however long it is looked at."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.lag import MOST, LogAge
from strandline.units import Nanos


def test_a_position_at_the_end_is_not_behind_and_one_before_it_is_as_old_as_what_follows() -> None:
    age = LogAge()
    assert age.behind(Nanos(5), 100) == 0
    age.look(Nanos(10), 100)
    age.look(Nanos(20), 200)
    age.look(Nanos(30), 200)
    assert age.behind(Nanos(40), 50) == 30
    assert age.behind(Nanos(40), 100) == 20
    assert age.behind(Nanos(40), 150) == 20
    assert age.behind(Nanos(40), 200) == 0


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 2_000))
def test_it_is_never_older_than_the_first_look_beyond_it(grown: list[int], position: int) -> None:
    age, end, first = LogAge(), 0, None
    for now, more in enumerate(grown):
        end += more
        age.look(Nanos(now), end)
        if first is None and end > position:
            first = now
    now = len(grown)
    assert age.behind(Nanos(now), position) == (0 if first is None else now - first)


def test_what_is_remembered_is_bounded_and_the_oldest_stays() -> None:
    age = LogAge()
    for now in range(20 * MOST):
        age.look(Nanos(now), now + 1)
    assert len(age._seen) <= MOST
    assert age.behind(Nanos(20 * MOST), 0) == 20 * MOST
