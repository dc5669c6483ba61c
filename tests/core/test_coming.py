"""What is waited for comes, or is given up when its reader no longer comes nearer."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.coming import Coming
from strandline.units import Nanos

WITHIN = 100
steps = st.lists(st.integers(1, WITHIN), min_size=1, max_size=30)


@given(steps, st.integers(0, 10**6))
def test_it_is_waited_for_however_long_the_reader_takes_to_the_place(pauses: list[int], first: int) -> None:
    coming, now = Coming(first + len(pauses), Nanos(WITHIN), Nanos(0)), 0
    for number, pause in enumerate(pauses):
        now += pause
        assert coming.look(first + number, Nanos(now))


@given(steps, st.sampled_from([None, 5, 50, 500]))
def test_a_reader_that_stands_still_or_says_nothing_is_given_up_in_time(pauses: list[int], place: int | None) -> None:
    coming, now = Coming(50, Nanos(WITHIN), Nanos(0)), 0
    coming.look(place, Nanos(0))
    for pause in pauses:
        now += pause
        assert coming.look(place, Nanos(now)) == (now <= WITHIN)


@given(steps)
def test_behind_the_place_it_does_not_count_that_the_reader_goes_on(pauses: list[int]) -> None:
    coming, now = Coming(50, Nanos(WITHIN), Nanos(0)), 0
    coming.look(60, Nanos(0))
    for number, pause in enumerate(pauses):
        now += pause
        assert coming.look(61 + number, Nanos(now)) == (now <= WITHIN)


@given(steps)
def test_what_comes_is_a_reason_to_wait_for_more(pauses: list[int]) -> None:
    coming, now = Coming(50, Nanos(WITHIN), Nanos(0)), 0
    for pause in pauses:
        now += pause
        assert coming.look(60, Nanos(now))
        coming.came(Nanos(now))
