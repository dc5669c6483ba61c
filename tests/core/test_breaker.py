"""A breaker against a simple model: nobody waits for a cluster that is down, and one at a time finds out if it is."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.core.breaker import Breaker, State
from strandline.units import Nanos

FAILURES = 3
OPEN_FOR = Nanos(100)


class AgainstAModel(RuleBasedStateMachine):
    """Requests that ask, succeed and fail in any order, also those that were sent long before."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(FAILURES, OPEN_FOR)
        self.now = 1
        self.in_a_row = 0
        self.closed_until: int | None = None
        """When the next one may try; None while everybody may."""
        self.trying = False

    @rule(passed=st.sampled_from([1, 30, 99, 100, 101, 500]))
    def time_passes(self, passed: int) -> None:
        self.now += passed

    @rule()
    def somebody_asks(self) -> None:
        let = self.breaker.lets(Nanos(self.now))
        assert let == (self.closed_until is None or self.now >= self.closed_until)
        if let and self.closed_until is not None:
            assert self.breaker.state is State.HALF_OPEN
            self.closed_until = self.now + OPEN_FOR
            self.trying = True

    @rule()
    def two_ask_at_once(self) -> None:
        was_closed = self.closed_until is None
        self.somebody_asks()
        assert self.breaker.lets(Nanos(self.now)) == was_closed

    @rule()
    def one_succeeds(self) -> None:
        self.breaker.succeeded()
        self.in_a_row, self.closed_until, self.trying = 0, None, False

    @rule()
    def one_fails(self) -> None:
        self.breaker.failed(Nanos(self.now))
        self.in_a_row += 1
        if self.trying or self.in_a_row >= FAILURES:
            self.closed_until, self.trying = self.now + OPEN_FOR, False

    @invariant()
    def it_is_closed_while_everybody_may_ask(self) -> None:
        assert (self.breaker.state is State.CLOSED) == (self.closed_until is None)
        assert (self.breaker.state is State.HALF_OPEN) == self.trying


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def opened() -> Breaker:
    breaker = Breaker(FAILURES, OPEN_FOR)
    for _ in range(FAILURES):
        assert breaker.lets(Nanos(0))
        breaker.failed(Nanos(0))
    return breaker


def test_nobody_is_let_before_its_time_and_then_one() -> None:
    breaker = opened()
    assert not breaker.lets(Nanos(OPEN_FOR - 1))
    assert [breaker.lets(OPEN_FOR) for _ in range(3)] == [True, False, False]


def test_one_success_closes_it_and_failures_are_counted_anew() -> None:
    breaker = opened()
    assert breaker.lets(OPEN_FOR)
    breaker.succeeded()
    breaker.failed(OPEN_FOR)
    assert breaker.state is State.CLOSED
    assert breaker.lets(OPEN_FOR)


def test_one_failure_of_who_tries_opens_it_again() -> None:
    breaker = opened()
    assert breaker.lets(OPEN_FOR)
    breaker.failed(OPEN_FOR)
    assert not breaker.lets(Nanos(2 * OPEN_FOR - 1))
    assert breaker.lets(Nanos(2 * OPEN_FOR))


def test_who_tries_and_never_comes_back_keeps_nobody_out_for_ever() -> None:
    breaker = opened()
    assert breaker.lets(OPEN_FOR)
    assert breaker.lets(Nanos(2 * OPEN_FOR))
