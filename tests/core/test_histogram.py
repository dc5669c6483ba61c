"""Quantiles are never too low, and at most an eighth too high."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.histogram import Histogram


@given(st.lists(st.integers(-5, 10**13), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_at_most_an_eighth_too_high(values: list[int], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ranked = sorted(max(0, value) for value in values)
    exact = next(value for rank, value in enumerate(ranked, 1) if rank >= share * len(values))
    assert exact <= histogram.quantile(share) <= exact * 9 / 8


def test_of_nothing_the_quantile_is_zero() -> None:
    assert Histogram().quantile(0.5) == 0
