"""Rates that are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.bucket import SECOND, Bucket
from strandline.units import Nanos

gaps = st.one_of(st.just(0), st.integers(0, 3 * SECOND))
items = st.lists(st.tuples(gaps, st.integers(0, 2_000)), max_size=30)


@given(st.integers(1, 5_000), st.integers(0, 2 * SECOND), items)
def test_no_stretch_of_time_lets_more_go_than_rate_and_burst(
    rate: int, burst: int, items: list[tuple[int, int]]
) -> None:
    bucket = Bucket(per_second=rate, burst=Nanos(burst))
    now = 0
    gone: list[tuple[int, int]] = []
    for gap, amount in items:
        now += gap
        gone.append((now + bucket.take(amount, Nanos(now)), amount))
    assert gone == sorted(gone, key=lambda item: item[0])
    for first, (begin, _) in enumerate(gone):
        total = 0
        for end, amount in gone[first:]:
            total += amount
            most = max(rate * burst, max(amount for _, amount in gone) * SECOND)
            assert total * SECOND <= most + rate * (end - begin)


@given(st.integers(1, 5_000), st.integers(1, 100))
def test_what_keeps_the_rate_never_waits(rate: int, count: int) -> None:
    bucket = Bucket(per_second=rate, burst=Nanos(SECOND))
    step = -(-SECOND // rate)
    assert all(bucket.take(1, Nanos(number * step)) == 0 for number in range(count))


@pytest.mark.parametrize(("rate", "burst"), [(0, 1), (1, -1)])
def test_a_rate_of_nothing_is_refused(rate: int, burst: int) -> None:
    with pytest.raises(ValueError, match="at least one a second"):
        Bucket(per_second=rate, burst=Nanos(burst))
