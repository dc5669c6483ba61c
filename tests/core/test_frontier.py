"""The laws of the frontier, against a model that is too slow and too simple to be wrong."""

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strandline.core.frontier import Frontier, Ticket
from strandline.errors import PositionError
from strandline.units import Nanos

NOW = Nanos(0)


class AgainstAModel(RuleBasedStateMachine):
    """Any sequence of register, done, repeated done, stale done and change of ownership."""

    def __init__(self) -> None:
        super().__init__()
        self.frontier: Frontier[int] = Frontier()
        self.position = 0
        self.clock = 0
        self.open: dict[Ticket, tuple[int, int]] = {}
        self.void: list[Ticket] = []
        self.registered: list[int] = []
        self.told: int | None = None

    def expected(self) -> int | None:
        held = min((position for position, _ in self.open.values()), default=None)
        passed = [p for p in self.registered if held is None or p < held]
        return max(passed, default=None)

    @rule(step=st.integers(1, 5))
    def register_a_later_position(self, step: int) -> None:
        self.position += step
        self.register()

    @precondition(lambda self: any(p == self.position for p, _ in self.open.values()))
    @rule()
    def register_the_same_position_again(self) -> None:
        self.register()

    def register(self) -> None:
        self.clock += 1
        ticket = self.frontier.register(self.position, Nanos(self.clock))
        assert ticket not in self.open
        assert ticket not in self.void
        self.open[ticket] = (self.position, self.clock)
        self.registered.append(self.position)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish_any(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[ticket]
        self.void.append(ticket)
        before = self.told
        moved = self.frontier.done(ticket)
        self.told = self.expected()
        assert moved == (None if self.told == before else self.told)

    @precondition(lambda self: self.void)
    @rule(data=st.data())
    def a_ticket_that_is_finished_or_of_an_earlier_generation_changes_nothing(self, data: st.DataObject) -> None:
        before = (self.frontier.position, self.frontier.in_flight, self.frontier.oldest(NOW))
        assert self.frontier.done(data.draw(st.sampled_from(self.void))) is None
        assert (self.frontier.position, self.frontier.in_flight, self.frontier.oldest(NOW)) == before

    @rule(restart_at=st.integers(0, 50))
    def change_owner(self, restart_at: int) -> None:
        before = self.frontier.generation
        assert self.frontier.next_generation() == before + 1 == self.frontier.generation
        self.void.extend(self.open)
        self.open.clear()
        self.registered.clear()
        self.told = None
        self.position = restart_at

    @initialize()
    def nothing_is_done_at_first(self) -> None:
        assert self.frontier.position is None

    @invariant()
    def the_frontier_is_the_last_position_below_everything_unfinished(self) -> None:
        assert self.frontier.position == self.expected()

    @invariant()
    def every_ticket_beyond_the_frontier_is_counted_finished_or_not(self) -> None:
        passed = self.expected()
        assert self.frontier.beyond == sum(passed is None or position > passed for position in self.registered)

    @invariant()
    def the_oldest_unfinished_is_named_with_its_age(self) -> None:
        assert self.frontier.in_flight == len(self.open)
        oldest = self.frontier.oldest(Nanos(self.clock + 7))
        if not self.open:
            assert oldest is None
            return
        position, since = self.open[min(self.open)]
        assert oldest is not None
        assert (oldest.position, oldest.age) == (position, self.clock + 7 - since)


TestAgainstAModel = AgainstAModel.TestCase


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1), st.randoms(use_true_random=False))
def test_all_done_in_any_order_reaches_the_last_position(steps: list[tuple[int, int]], chance: random.Random) -> None:
    frontier: Frontier[tuple[int, int]] = Frontier()
    positions = sorted(steps)
    tickets = [frontier.register(position, NOW) for position in positions]
    chance.shuffle(tickets)
    moves = [move for move in map(frontier.done, tickets) if move is not None]
    assert moves == sorted(set(moves))
    assert moves[-1] == frontier.position == positions[-1]
    assert frontier.oldest(NOW) is None


def test_a_position_that_goes_back_is_refused() -> None:
    frontier: Frontier[int] = Frontier()
    frontier.register(5, NOW)
    with pytest.raises(PositionError, match="position 4 was registered after 5"):
        frontier.register(4, NOW)


def test_a_position_that_the_frontier_has_passed_is_refused() -> None:
    frontier: Frontier[int] = Frontier()
    frontier.done(frontier.register(5, NOW))
    with pytest.raises(PositionError):
        frontier.register(5, NOW)
    assert frontier.position == 5


@pytest.mark.parametrize("rest", [0, 100])
def test_a_writer_thread_and_a_finisher_thread_need_no_lock_of_their_own(rest: int, hasty_threads: None) -> None:
    frontier: Frontier[int] = Frontier()
    positions, holders = 10_000, 3
    handed_over: SimpleQueue[list[Ticket] | None] = SimpleQueue()

    def write() -> None:
        for position in range(positions):
            handed_over.put([frontier.register(position, NOW) for _ in range(holders)])
        handed_over.put(None)

    def finish() -> list[int]:
        chance = random.Random(7)
        waiting: list[Ticket] = []
        moves = []
        while (tickets := handed_over.get(timeout=60)) is not None:
            waiting += tickets
            moves += finish_some(waiting, chance, rest)
        return moves + finish_some(waiting, chance, 0)

    def finish_some(waiting: list[Ticket], chance: random.Random, rest: int) -> list[int]:
        moves = []
        while len(waiting) > rest:
            moved = frontier.done(waiting.pop(chance.randrange(len(waiting))))
            oldest = frontier.oldest(NOW)
            # Ticket n holds position n // holders, and whatever still waits must lie above the frontier.
            unfinished = min((ticket // holders for ticket in waiting), default=positions)
            assert oldest is None or oldest.position <= unfinished
            if moved is not None:
                assert moved < unfinished
                moves.append(moved)
        return moves

    with ThreadPoolExecutor(2) as pool:
        writer, finisher = pool.submit(write), pool.submit(finish)
        moves = finisher.result(timeout=100)
        writer.result(timeout=1)
    assert moves == sorted(set(moves))
    assert moves[-1] == frontier.position == positions - 1
    assert frontier.in_flight == frontier.beyond == 0


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that switch as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
