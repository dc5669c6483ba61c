"""What is said of another clock is right to within its doubt, however long the ways took."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.skew import Sample, Skew
from strandline.units import Nanos

times = st.integers(0, 10**12)
exchanges = st.lists(st.tuples(times, times, times, times), min_size=1, max_size=20)
ahead = st.integers(-(10**13), 10**13)


def skewed(true: int, ways: list[tuple[int, int, int, int]]) -> Skew:
    """Exchanges with a clock that is ahead by so much: when, the way there, the work, the way back."""
    skew = Skew()
    for begin, there, work, back in ways:
        received = begin + there + true
        returned = begin + there + work + back
        skew.add(Sample(Nanos(begin), Nanos(received), Nanos(received + work), Nanos(returned)))
    return skew


@given(ahead, exchanges)
def test_the_true_difference_lies_within_the_doubt(true: int, ways: list[tuple[int, int, int, int]]) -> None:
    best = skewed(true, ways).best
    assert best is not None
    assert abs(best.ahead - true) <= best.doubt
    assert best.doubt <= min(there + back for _, there, _, back in ways) // 2 + 1


@given(exchanges)
def test_two_clocks_that_agree_are_never_told_apart(ways: list[tuple[int, int, int, int]]) -> None:
    assert skewed(0, ways).ahead == 0


def test_without_an_exchange_nothing_is_known() -> None:
    assert (Skew().best, Skew().ahead) == (None, 0)
