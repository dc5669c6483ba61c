"""Retries end, wait within bounds, and never repeat what cannot work."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.core.retry import (
    Attempts,
    Backoff,
    Endless,
    Failure,
    GiveUp,
    Policy,
    RetryAfter,
    Within,
    classify,
    decide,
)
from strandline.units import Nanos

draws = st.floats(0, 1, exclude_max=True)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    first = draw(st.integers(1, 10**10))
    return Backoff(
        first=Nanos(first),
        ceiling=Nanos(draw(st.integers(first, 10**12))),
        factor=draw(st.floats(1, 1000)),
        jitter=draw(st.floats(0, 1)),
    )


@given(backoffs(), st.integers(1, 10**6), draws)
def test_a_wait_is_never_above_the_ceiling_nor_below_what_jitter_may_take(
    backoff: Backoff, attempt: int, draw: float
) -> None:
    longest = backoff.delay(attempt, 0.0)
    assert longest <= backoff.ceiling
    assert int(longest * (1 - backoff.jitter)) - 1 <= backoff.delay(attempt, draw) <= longest


@given(backoffs(), st.integers(1, 5000))
def test_waits_without_jitter_grow_by_the_factor_up_to_the_ceiling(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay(1, 0.0) == backoff.first
    grown = min(backoff.ceiling, backoff.delay(attempt, 0.0) * backoff.factor)
    assert backoff.delay(attempt + 1, 0.0) == pytest.approx(grown, rel=1e-9, abs=backoff.factor + 1)


@given(backoffs(), st.integers(1, 50), draws)
def test_a_policy_of_n_attempts_makes_n(backoff: Backoff, most: int, draw: float) -> None:
    policy = Policy(backoff={Failure.TRANSIENT: backoff}, until=Attempts(most))
    answers = (decide(policy, Failure.TRANSIENT, attempt=n, elapsed=Nanos(0), draw=draw) for n in itertools.count(1))
    retries = list(itertools.takewhile(lambda answer: isinstance(answer, RetryAfter), answers))
    assert len(retries) == most - 1


@given(backoffs(), st.integers(0, 10**13), st.integers(0, 10**13), draws)
def test_no_attempt_begins_after_the_limit(backoff: Backoff, limit: int, elapsed: int, draw: float) -> None:
    policy = Policy(backoff={Failure.THROTTLED: backoff}, until=Within(Nanos(limit)))
    match decide(policy, Failure.THROTTLED, attempt=3, elapsed=Nanos(elapsed), draw=draw):
        case RetryAfter(delay):
            assert elapsed + delay <= limit
        case GiveUp():
            assert elapsed + backoff.delay(3, draw) > limit


@given(backoffs(), st.integers(1, 10**9), draws)
def test_a_kind_without_a_back_off_is_never_retried(backoff: Backoff, attempt: int, draw: float) -> None:
    policy = Policy(backoff={Failure.TRANSIENT: backoff}, until=Endless("the target is ours to wait for"))
    permanent = decide(policy, Failure.PERMANENT, attempt=attempt, elapsed=Nanos(0), draw=draw)
    assert permanent == GiveUp("a permanent failure is not retried")
    assert isinstance(decide(policy, Failure.TRANSIENT, attempt=attempt, elapsed=Nanos(0), draw=draw), RetryAfter)


def test_the_first_rule_that_fits_decides_and_the_unknown_is_permanent() -> None:
    rules = [(ConnectionRefusedError, Failure.PERMANENT), (OSError, Failure.TRANSIENT)]
    assert classify(ConnectionRefusedError(), rules) is Failure.PERMANENT
    assert classify(ConnectionResetError(), rules) is Failure.TRANSIENT
    assert classify(ValueError(), rules) is Failure.PERMANENT


@pytest.mark.parametrize(
    "wrong", [{"first": 0}, {"first": 11}, {"factor": 0.5}, {"factor": float("inf")}, {"jitter": 1.5}, {"jitter": -0.1}]
)
def test_a_back_off_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"back-off|jitter"):
        Backoff(**({"first": Nanos(1), "ceiling": Nanos(10)} | wrong))  # type: ignore[arg-type]
