"""Allowances: never more than the rate and what was saved in one second, and never less than is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.allowance import SECOND, Allowance
from strandline.units import Nanos

rates = st.integers(1, 2000)
sizes = st.integers(0, 3000)
asks = st.lists(st.tuples(st.integers(0, 2 * SECOND), sizes), max_size=200)


def taken(allowance: Allowance, asks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What passed, each with its time."""
    now, passed = 0, []
    for wait, size in asks:
        now += wait
        if allowance.take(size, Nanos(now)):
            passed.append((now, size))
    return passed


@given(rates, rates, asks)
def test_in_no_span_of_time_more_passes_than_the_rate_and_one_second_more(
    records: int, size: int, asks: list[tuple[int, int]]
) -> None:
    passed = taken(Allowance(records_per_s=records, bytes_per_s=size, now=Nanos(0)), asks)
    for begin in range(len(passed)):
        for end in range(begin, len(passed)):
            span = passed[end][0] - passed[begin][0] + SECOND
            assert (end - begin + 1) * SECOND <= records * span
            # One record may be larger than a second's bytes: the last one, before it is paid off.
            assert sum(each for _, each in passed[begin:end]) * SECOND <= size * span


@given(rates, st.integers(1, 100))
def test_what_comes_at_the_rate_always_passes(records: int, count: int) -> None:
    allowance = Allowance(records_per_s=records, bytes_per_s=10 * records, now=Nanos(0))
    step = -(-SECOND // records)
    asks = [(step, 10)] * count
    assert len(taken(allowance, asks)) == count


@given(rates, st.integers(1, 10_000))
def test_a_record_of_any_size_passes_after_a_time(rate: int, size: int) -> None:
    allowance = Allowance(records_per_s=10, bytes_per_s=rate, now=Nanos(0))
    assert allowance.take(size, Nanos(0))
    paid_off = Nanos(SECOND * (-(-size // rate) + 1))
    assert allowance.take(size, paid_off)


@given(asks)
def test_a_refused_record_takes_nothing(asks: list[tuple[int, int]]) -> None:
    one, other = (Allowance(records_per_s=5, bytes_per_s=1000, now=Nanos(0)) for _ in range(2))
    passed = taken(one, asks)
    waits = [now - before for (now, _), before in zip(passed, [0, *(now for now, _ in passed)], strict=False)]
    assert taken(other, [(wait, size) for wait, (_, size) in zip(waits, passed, strict=True)]) == passed


def test_a_clock_that_runs_back_gives_nothing_and_takes_nothing() -> None:
    allowance = Allowance(records_per_s=1, bytes_per_s=10, now=Nanos(SECOND))
    assert allowance.take(1, Nanos(0))
    assert not allowance.take(1, Nanos(SECOND))
    assert allowance.take(1, Nanos(2 * SECOND))


@pytest.mark.parametrize(("records", "size"), [(0, 1), (1, 0)])
def test_an_allowance_of_nothing_is_refused(records: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least one record and one byte a second"):
        Allowance(records_per_s=records, bytes_per_s=size, now=Nanos(0))
