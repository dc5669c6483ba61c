"""Whoever publishes leads on while anything gets on, and not for long after."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.standstill import Standstill
from strandline.units import Nanos

PATIENCE = 100
pauses = st.lists(st.integers(1, PATIENCE), min_size=1, max_size=30)


@given(pauses, st.data())
def test_while_either_the_publisher_or_its_tasks_get_on_nothing_is_wrong(steps: list[int], data: st.DataObject) -> None:
    standstill, now, signs = Standstill(Nanos(PATIENCE)), Nanos(0), {"publisher": 0, "tasks": 0}
    standstill.asks(0, now)
    standstill.tasks(0, now)
    for step in steps:
        now = Nanos(now + step)
        assert standstill.problem(now) is None
        signs[data.draw(st.sampled_from(sorted(signs)))] += 1
        standstill.asks(signs["publisher"], now)
        standstill.tasks(signs["tasks"], now)


@given(pauses)
def test_where_neither_gets_on_it_is_told_in_time_however_often_it_is_asked(steps: list[int]) -> None:
    standstill, now = Standstill(Nanos(PATIENCE)), Nanos(0)
    standstill.asks("epoch 7", now)
    standstill.tasks("granted", now)
    for step in steps:
        now = Nanos(now + step)
        standstill.asks("epoch 7", now)
        standstill.tasks("granted", now)
        assert ("nothing has got on" in (standstill.problem(now) or "")) == (now > PATIENCE)


@given(pauses)
def test_who_asks_no_more_stands_still_whatever_its_tasks_do(steps: list[int]) -> None:
    standstill, now = Standstill(Nanos(PATIENCE)), Nanos(0)
    standstill.asks(None, now)
    for number, step in enumerate(steps):
        now = Nanos(now + step)
        standstill.tasks(number, now)
        assert ("whoever publishes has stood still" in (standstill.problem(now) or "")) == (now > PATIENCE)


@given(pauses)
def test_who_shows_nothing_gets_on_by_asking_and_before_it_does_nothing_is_judged(steps: list[int]) -> None:
    standstill, now = Standstill(Nanos(PATIENCE)), Nanos(0)
    assert standstill.problem(Nanos(10 * PATIENCE)) is None
    for step in steps:
        now = Nanos(now + step)
        standstill.asks(None, now)
        assert standstill.problem(Nanos(now + PATIENCE)) is None
