"""The test for a regression finds what has become slower, and little else."""

import random
from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.report.latency import bucket, curve, micros_of, p_value, quantile, regressions
from strandline.report.rules import LatencySection

RULES = LatencySection()
DURATIONS = st.lists(st.integers(0, 10**7), min_size=8, max_size=25)


def spread(chance: random.Random, middle_us: float, count: int) -> list[int]:
    """Durations as servers have them: most in the middle, some far above."""
    return [round(middle_us * chance.lognormvariate(0, 0.5)) for _ in range(count)]


def counted(durations: list[int]) -> Counter[int]:
    return Counter(map(bucket, durations))


@given(st.integers(0, 10**12))
def test_a_bucket_tells_a_duration_to_a_percent(micros: int) -> None:
    assert micros_of(bucket(micros)) == pytest.approx(micros, rel=0.012, abs=1)
    assert bucket(micros) <= bucket(micros + 1)


@given(DURATIONS)
def test_a_curve_rises_from_the_shortest_to_the_longest(durations: list[int]) -> None:
    found = curve(counted(durations))
    assert list(found) == sorted(found)
    assert [micros for _, micros in found] == sorted(micros for _, micros in found)
    assert (found[0][0], found[-1][0]) == (0.0, 1.0)
    assert found[0][1] == pytest.approx(min(durations), rel=0.012, abs=1)
    assert found[-1][1] == pytest.approx(max(durations), rel=0.012, abs=1)
    middle = sorted(durations)[(len(durations) - 1) // 2]
    assert quantile(counted(durations), 0.5) == dict(found)[0.5] == pytest.approx(middle, rel=0.012, abs=1)


@given(DURATIONS, DURATIONS)
def test_the_p_value_is_that_of_the_ranks(source: list[int], target: list[int]) -> None:
    ones, others = counted(source), counted(target)
    wins = sum(
        n * m * (1.0 if b > a else 0.5 if b == a else 0) for (a, n), (b, m) in product(ones.items(), others.items())
    )
    p = p_value(ones, others)
    assert p is not None
    even = len(source) * len(target) / 2 + 0.5
    assert p < 0.5 if wins > even else p > 0.5 if wins < even else p == 0.5
    back = p_value(others, ones)
    assert back is not None
    assert p + back >= 1


@settings(derandomize=True)
@given(seed=st.integers(), count=st.integers(20, 300), middle_us=st.floats(1_000, 500_000))
def test_durations_of_one_distribution_are_no_regression(seed: int, count: int, middle_us: float) -> None:
    chance = random.Random(seed)
    pairs = {
        f"GET /{n}": (counted(spread(chance, middle_us, count)), counted(spread(chance, middle_us, count)))
        for n in range(20)
    }
    assert not any(test.regressed for test in regressions(pairs, RULES).values())


@settings(derandomize=True)
@given(seed=st.integers(), count=st.integers(40, 300), middle_us=st.floats(30_000, 500_000))
def test_what_takes_twice_as_long_is_found_among_others(seed: int, count: int, middle_us: float) -> None:
    chance = random.Random(seed)
    pairs = {
        f"GET /{n}": (
            counted(spread(chance, middle_us, count)),
            counted(spread(chance, middle_us * (2.5 if n == 3 else 1), count)),
        )
        for n in range(20)
    }
    found = regressions(pairs, RULES)
    assert [name for name, test in found.items() if test.regressed] == ["GET /3"]
    assert found["GET /3"].slower == pytest.approx(2.5, rel=0.6)


def test_a_difference_that_is_small_is_none_however_certain() -> None:
    source = Counter({bucket(10_000): 100_000})
    tested = regressions({"a": (source, Counter({bucket(12_000): 100_000}))}, RULES)["a"]
    assert not tested.regressed
    assert tested.p_value is not None
    assert tested.p_value < 1e-9
    millis = regressions({"a": (source, Counter({bucket(19_000): 100_000}))}, RULES)["a"]
    assert not millis.regressed


def test_few_exchanges_tell_nothing() -> None:
    tested = regressions({"a": (Counter({1: 7}), Counter({900: 7})), "b": (Counter(), Counter())}, RULES)
    assert (tested["a"].p_value, tested["a"].regressed) == (None, False)
    assert tested["b"].slower is None
