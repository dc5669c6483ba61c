"""Laws of the gate: what is paused, and that nothing is while only reading can help."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import ManualClock
from strandline.kafka.partition import Partition
from strandline.replay.gate import AT_FULL_SPEED, ENOUGH, ENOUGH_RESULTS, REOPEN_BELOW, SHUT_ABOVE, Gate
from strandline.units import Nanos

LOOKAHEAD = Nanos(100)
MEMORY = 1000
PLACES = [Partition("traffic", number) for number in range(3)]


@dataclass
class Around:
    """All that a gate looks at, as a test wants it."""

    clock: ManualClock = field(default_factory=ManualClock)
    paused: set[Partition] = field(default_factory=set)
    times: dict[int, Nanos] = field(default_factory=dict)
    advanced: list[tuple[int, Nanos]] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    waiting_bytes: int = 0
    is_waiting_for_source: bool = False
    is_behind: bool = False
    unsafe: int = 0
    reached: int = 0
    memory: int = MEMORY
    is_free: bool = False

    def __post_init__(self) -> None:
        self.spools = SimpleNamespace(max_bytes=self.memory)
        self.timeline = SimpleNamespace(reached=lambda: self.reached, is_free=self.is_free)

    def pause(self, partitions: list[Partition]) -> None:
        assert not self.paused & set(partitions)
        self.paused |= set(partitions)

    def resume(self, partitions: list[Partition]) -> None:
        assert self.paused >= set(partitions)
        self.paused -= set(partitions)

    def time(self, partition: int) -> Nanos | None:
        return self.times.get(partition)

    def settle(self, partition: int) -> None:
        self.settled.append(partition)

    def advance(self, partition: int, now: Nanos) -> None:
        self.advanced.append((partition, now))

    def gate(self) -> Gate:
        around: Any = self
        gate = Gate(around, around, around, around, LOOKAHEAD)
        for place in PLACES:
            gate.assign(place)
        return gate


states = st.tuples(
    st.lists(st.integers(0, 300), min_size=3, max_size=3),
    st.integers(0, 300),
    st.integers(0, 2 * MEMORY),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(states, min_size=1))
def test_a_partition_is_paused_while_it_is_too_far_ahead_or_memory_is_short_and_only_then(
    steps: list[tuple[list[int], int, int, bool, bool]],
) -> None:
    around = Around()
    gate = around.gate()
    is_short = False
    for times, reached, waiting, needs_source, is_behind in steps:
        around.times = {number: Nanos(time) for number, time in enumerate(times)}
        around.reached, around.waiting_bytes = reached, waiting
        around.is_waiting_for_source, around.is_behind = needs_source, is_behind
        gate.tick()
        if needs_source:
            is_short = False
        elif is_behind or waiting > SHUT_ABOVE * MEMORY:
            is_short = True
        elif waiting < REOPEN_BELOW * MEMORY:
            is_short = False
        ahead = {place for place in PLACES if times[place.number] > reached + LOOKAHEAD}
        assert around.paused == (set(PLACES) if is_short else ahead)


@pytest.mark.parametrize("is_free", [True, False])
def test_where_all_is_due_at_once_no_more_is_read_ahead_than_keeps_the_sender_busy(*, is_free: bool) -> None:
    around = Around(memory=100 * AT_FULL_SPEED, is_free=is_free, waiting_bytes=AT_FULL_SPEED)
    around.gate().tick()
    assert bool(around.paused) == is_free


@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("needs_source", [True, False])
@pytest.mark.parametrize(("waiting", "unsafe"), [(ENOUGH + 1, 0), (0, ENOUGH_RESULTS + 1), (ENOUGH, ENOUGH_RESULTS)])
def test_reading_rests_where_all_is_due_at_once_and_enough_is_at_hand_unless_only_reading_helps(
    *, is_free: bool, needs_source: bool, waiting: int, unsafe: int
) -> None:
    around = Around(is_free=is_free, is_waiting_for_source=needs_source, waiting_bytes=waiting, unsafe=unsafe)
    is_much = (waiting, unsafe) != (ENOUGH, ENOUGH_RESULTS)
    assert around.gate().has_enough == (is_much and is_free and not needs_source)


def test_at_the_end_of_the_log_the_time_of_the_source_goes_on_with_the_clock_until_there_is_more() -> None:
    around = Around(times={0: Nanos(50)})
    gate = around.gate()
    gate.at_end(PLACES[0])
    around.clock.advance(Nanos(100_000_000))
    gate.tick()
    assert not around.advanced
    around.clock.advance(Nanos(200_000_000))
    gate.tick()
    assert around.advanced == [(0, Nanos(300_000_050))]
    assert around.settled == [0]
    gate.check([PLACES[0]])
    around.clock.advance(Nanos(1_000_000_000))
    gate.tick()
    assert len(around.advanced) == 1


def test_a_partition_that_is_over_stays_paused_whatever_else_happens() -> None:
    around = Around()
    gate = around.gate()
    gate.end(PLACES[0])
    for waiting in (0, MEMORY, 0):
        around.waiting_bytes = waiting
        gate.tick()
        assert PLACES[0] in around.paused
    assert around.paused == {PLACES[0]}
