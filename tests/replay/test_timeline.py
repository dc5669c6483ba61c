"""Laws of the clock that can be stopped, of the leave to send, and of alarms."""

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import ManualClock, SystemClock
from strandline.core.pacing import Pace
from strandline.replay.alarms import Alarms
from strandline.replay.leave import Leave, Reason
from strandline.replay.timeline import AS_FAST_AS_POSSIBLE, Timeline, date_of
from strandline.units import Nanos
from tests.support import TIMEOUT

times = st.integers(0, 10**12).map(Nanos)
speeds = st.fractions(Fraction(1, 100), 100)


@given(times, times, times, times, speeds)
def test_what_is_due_moves_by_exactly_the_time_that_the_clock_stood_still(
    begin: Nanos, source: Nanos, running: Nanos, standing: Nanos, speed: Fraction
) -> None:
    clock = ManualClock()
    timeline = Timeline(clock, speed)
    timeline.begin(begin)
    due = timeline.due(source)
    clock.advance(running)
    timeline.stop()
    reached = timeline.reached()
    clock.advance(standing)
    timeline.stop()  # again is as good as once
    assert timeline.reached() == reached
    assert timeline.go_on() == standing
    assert timeline.go_on() == 0
    assert timeline.reached() == reached
    assert timeline.due(source) == due + standing


@given(times, st.lists(times), speeds)
def test_what_came_later_is_never_due_earlier_and_the_first_is_due_at_once(
    begin: Nanos, sources: list[Nanos], speed: Fraction
) -> None:
    clock = ManualClock()
    clock.advance(Nanos(5))
    timeline = Timeline(clock, speed)
    assert timeline.reached() is None
    assert timeline.due(begin) == 5
    assert timeline.reached() == begin
    dues = [timeline.due(source) for source in sorted(sources)]
    assert dues == sorted(dues)


@given(st.lists(st.tuples(st.sampled_from(Reason), st.booleans(), st.booleans())))
def test_who_is_parked_is_woken_once_and_only_when_nothing_stands_against_it(
    changes: list[tuple[Reason, bool, bool]],
) -> None:
    leave = Leave()
    against: set[Reason] = set()
    woken: list[int] = []
    parked: set[int] = set()
    for number, (reason, withdraw, park) in enumerate(changes):
        if withdraw:
            leave.withdraw(reason)
            against.add(reason)
        else:
            leave.restore(reason)
            against.discard(reason)
            if not against:
                assert set(woken) >= parked
        assert leave.against == against
        assert leave.is_given is not bool(against)
        if park and against:
            leave.park(lambda number=number: woken.append(number))  # type: ignore[misc]
            parked.add(number)
            assert number not in woken
    assert len(woken) == len(set(woken))


@given(st.lists(st.integers(-1_000_000, 3_000_000), min_size=1, max_size=20))
def test_alarms_ring_each_once_in_the_order_of_their_times_and_never_early(offsets: list[int]) -> None:
    async def main() -> None:
        clock = SystemClock()
        alarms = Alarms(asyncio.get_running_loop(), clock)
        rung: list[tuple[Nanos, Nanos]] = []
        all_rung = asyncio.Event()

        def ring(due: Nanos) -> None:
            rung.append((due, clock.monotonic()))
            if len(rung) == len(offsets):
                all_rung.set()

        begin = clock.monotonic()
        for offset in offsets:
            due = Nanos(begin + offset)
            alarms.at(due, lambda due=due: ring(due))  # type: ignore[misc]
        assert len(alarms) == len(offsets)
        async with asyncio.timeout(TIMEOUT):
            await all_rung.wait()
        alarms.close()
        assert all(at >= due for due, at in rung)
        assert [due for due, _ in rung] == sorted(begin + offset for offset in offsets)

    asyncio.run(main())


def test_an_alarm_beyond_what_the_kernel_counts_keeps_no_other_from_ringing() -> None:
    async def main() -> None:
        clock, rung = SystemClock(), asyncio.Event()
        alarms = Alarms(asyncio.get_running_loop(), clock)
        alarms.at(Nanos(1 << 80), rung.clear)
        alarms.at(Nanos(clock.monotonic() + 1_000_000), rung.set)
        async with asyncio.timeout(TIMEOUT):
            await rung.wait()
        assert len(alarms) == 1
        alarms.close()

    asyncio.run(main())


@given(st.integers(-(1 << 90), 1 << 90).map(Nanos))
def test_any_time_that_is_reached_can_be_shown(source: Nanos) -> None:
    date = date_of(source)
    assert date is None or abs(date.timestamp() * 1e9 - source) < 1e6


def test_at_full_speed_the_time_is_soon_beyond_all_dates() -> None:
    clock = ManualClock()
    timeline = Timeline(clock, AS_FAST_AS_POSSIBLE)
    timeline.begin(Nanos(0))
    clock.advance(Nanos(600 * 10**9))
    assert timeline.reached() is not None
    assert date_of(timeline.reached()) is None


@pytest.mark.parametrize(("speed", "shown"), [(Fraction(2), 20), (AS_FAST_AS_POSSIBLE, None)])
def test_a_time_is_shown_only_where_it_is_one_of_the_source(speed: Fraction, shown: int | None) -> None:
    clock = ManualClock()
    timeline = Timeline(clock, speed)
    timeline.begin(Nanos(0))
    clock.advance(Nanos(10))
    assert timeline.shown() == shown


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 1000)), max_size=30))
def test_clocks_that_follow_each_other_keep_one_time_however_each_is_stopped(events: list[tuple[int, int]]) -> None:
    clock = ManualClock()
    reference = Pace(Nanos(0), Nanos(0))
    both = [Timeline(clock, reference=reference) for _ in range(2)]
    is_stopped = [False, False]
    for which, passed in events:
        clock.advance(Nanos(passed))
        if which < 2:
            (both[which].go_on if is_stopped[which] else both[which].stop)()
            is_stopped[which] = not is_stopped[which]
        most = max(line.stood for line in both)
        for line in both:
            line.follow(Nanos(most))
    for line in both:
        line.go_on()
    most = max(line.stood for line in both)
    for line in both:
        line.follow(Nanos(most))
    assert both[0].due(Nanos(7)) == both[1].due(Nanos(7)) == 7 + most
    assert most <= clock.monotonic()
