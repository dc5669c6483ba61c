"""What all workers share: a client's turn, replays at once by rank, and what a worker that is gone had."""

import hypothesis.strategies as st
from hypothesis import given

from strandline.gateway.arbiter import LATE_S, LEAST_AT_ONCE, TICK_S, Arbiter
from strandline.gateway.limits import Limits
from strandline.gateway.messages import Answered, Ask, Counts, Denied, Done, Enter, Entered, State, ToWorker


class Told:
    """An arbiter whose clock a test sets, and the answers of it."""

    def __init__(self, limits: Limits) -> None:
        self.now = 0.0
        self.arbiter = Arbiter(limits, lambda: self.now)
        self.answers: dict[tuple[int, int], Denied | bool | None] = {}
        self._number = 0

    def ask(self, worker: int, name: str, rank: int = 0, *, owner: str = "", is_paid: bool = False) -> tuple[int, int]:
        self._number += 1
        ask = Ask(self._number, owner, name, rank, is_paid)
        self.arbiter.heard(worker, ask, lambda message: self._hear(worker, message))
        return worker, self._number

    def enter(self, worker: int, address: str) -> bool:
        self._number += 1
        self.arbiter.heard(worker, Enter(self._number, address), lambda message: self._hear(worker, message))
        return bool(self.answers[worker, self._number])

    def done(self, asked: tuple[int, int]) -> None:
        self.arbiter.heard(asked[0], Done(asked[1]), lambda _: None)

    def late(self, worker: int, lag: float) -> None:
        self.now += TICK_S
        self.arbiter.heard(worker, State(Counts(), 0, 0, 0, lag, []), lambda _: None)

    def _hear(self, worker: int, message: ToWorker) -> None:
        match message:
            case Answered(number=number, denied=denied):
                self.answers[worker, number] = denied
            case Entered(number=number, is_admitted=is_admitted):
                self.answers[worker, number] = is_admitted


def test_a_client_has_one_turn_in_a_while_whichever_worker_it_comes_to() -> None:
    told = Told(Limits(cold_every_s=10.0))
    assert told.answers[told.ask(1, "me")] is None
    told.now = 4.0
    denied = told.answers[told.ask(2, "me")]
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry_after) == ("replay_limited", 6.0)
    assert told.answers[told.ask(2, "you")] is None
    assert told.answers[told.ask(2, "me", is_paid=True)] is None
    told.now = 10.0
    assert told.answers[told.ask(2, "me")] is None


def test_who_takes_another_name_each_time_has_the_turns_of_its_owner_and_no_more() -> None:
    told = Told(Limits(cold_every_s=10.0, cold_clients=3))
    for worker, name in enumerate("abc", 1):
        assert told.answers[told.ask(worker, name, owner="one")] is None
    told.now = 4.0
    denied = told.answers[told.ask(1, "d", owner="one")]
    assert isinstance(denied, Denied)
    assert (denied.code, denied.retry_after) == ("replay_limited", 6.0)
    assert told.answers[told.ask(1, "d", owner="two")] is None
    # The next page of what was allowed is no turn.
    assert told.answers[told.ask(1, "d", owner="one", is_paid=True)] is None


def test_two_of_one_client_that_wait_in_line_together_have_one_turn() -> None:
    told = Told(Limits(cold_at_once=1))
    first = told.ask(1, "other")
    waiting = [told.ask(worker, "me") for worker in (1, 2)]
    told.done(first)
    assert told.answers[waiting[0]] is None
    told.done(waiting[0])
    denied = told.answers[waiting[1]]
    assert isinstance(denied, Denied)
    assert denied.code == "replay_limited"
    assert told.arbiter.line.inside == told.arbiter.line.waiting == 0


def test_those_of_a_better_rank_go_first_and_the_last_of_the_worst_is_sent_away() -> None:
    told = Told(Limits(cold_at_once=1, cold_waiting=2))
    first = told.ask(1, "first", 1)
    low, lower = told.ask(1, "low", 1), told.ask(2, "lower", 2)
    high = told.ask(2, "high", 0)
    denied = told.answers[lower]
    assert isinstance(denied, Denied)
    assert denied.code == "busy"
    assert denied.retry_after > 0
    assert {low, high}.isdisjoint(told.answers)
    told.done(first)
    assert told.answers[high] is None
    assert low not in told.answers
    told.done(high)
    assert told.answers[low] is None


def test_late_workers_have_fewer_at_once_and_calm_ones_all_of_them_again() -> None:
    told = Told(Limits(cold_at_once=16))
    asked = [told.ask(1, str(number)) for number in range(40)]
    assert len(told.answers) == 16
    told.late(2, 2 * LATE_S)
    for done in asked[:9]:
        told.done(done)
    assert told.arbiter.line.at_once == 8
    assert told.arbiter.line.inside == 8
    for _ in range(10):
        told.late(1, 10.0)
    assert told.arbiter.line.at_once == LEAST_AT_ONCE
    for done in asked[9:16]:
        told.done(done)
    for _ in range(10):
        told.late(1, 0.0)
    assert told.arbiter.line.at_once == 16
    assert told.arbiter.line.inside == 16


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["enter", "ask", "gone"]))))
def test_what_a_worker_had_is_free_when_it_is_gone(doings: list[tuple[int, str]]) -> None:
    told = Told(Limits(connections=4, cold_at_once=2))
    rooms: list[int] = []
    for place, (worker, doing) in enumerate(doings):
        if doing == "enter":
            has_room = len(rooms) < 4
            assert told.enter(worker, "address") == has_room
            rooms += [worker] * has_room
        elif doing == "ask":
            told.ask(worker, str(place))
        else:
            told.arbiter.gone(worker)
            rooms = [one for one in rooms if one != worker]
    for worker in (1, 2, 3):
        told.arbiter.gone(worker)
    assert told.arbiter.room.total == told.arbiter.line.inside == told.arbiter.line.waiting == 0
