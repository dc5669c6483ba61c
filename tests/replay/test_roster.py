"""What the driver of a fleet orders, whatever its members report and in whatever order."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.histogram import Histogram
from strandline.replay.messages import Failure, Figures, Order, Reference, Report, encode, local, read_report
from strandline.replay.roster import LEAD, READY_WITHIN, SILENT_AFTER, Roster, lateness, mismatches
from strandline.replay.status import PartitionStatus, Status
from strandline.units import Nanos

SOURCE = Nanos(1_780_000_000_000_000_000)
NOW, WALL = Nanos(0), Nanos(1_790_000_000_000_000_000)


def told(task: int, attempt: int | None = None, **changes: Any) -> Report:
    return Report(task=task, attempt=task if attempt is None else attempt, host="h", pid=1, at=0, **changes)


figures = st.builds(
    Figures,
    requests=st.integers(0, 1000),
    sent=st.integers(0, 1000),
    verdicts=st.dictionaries(st.sampled_from(["match", "no_target", "status_differs"]), st.integers(1, 9)),
    late=st.dictionaries(st.integers(0, 511), st.integers(1, 9)),
)
reports = st.builds(
    told,
    st.integers(0, 2),
    st.integers(0, 9),
    is_ready=st.booleans(),
    is_done=st.booleans(),
    is_last=st.booleans(),
    owned=st.lists(st.integers(0, 3), max_size=4, unique=True),
    figures=figures,
)


@given(st.lists(reports, max_size=30))
def test_the_reference_is_set_once_and_an_order_to_end_is_never_taken_back(said: list[Report]) -> None:
    roster = Roster(3, range(4))
    roster.begins_with(SOURCE)
    references, orders = set(), []
    for moment, report in enumerate(said):
        roster.report(report, Nanos(moment))
        roster.tick(Nanos(moment), Nanos(WALL + moment))
        references.add(None if roster.reference is None else (roster.reference.source, roster.reference.wall))
        orders.append(roster.order_for(report.task, 10))
    assert len(references - {None}) <= 1
    assert orders == sorted(orders, key=[Order.GO_ON, Order.FINISH].index)


@given(st.lists(reports, max_size=30))
def test_what_every_attempt_had_counted_last_counts_once(said: list[Report]) -> None:
    roster = Roster(3, range(4))
    last: dict[tuple[int, int], Report] = {}
    newest: dict[int, int] = {}
    for report in said:
        roster.report(report, NOW)
        place = (report.task, report.attempt)
        if report.attempt >= newest.get(report.task, 0) and not (place in last and last[place].is_last):
            newest[report.task] = report.attempt
            last[place] = report
    assert roster.figures.sent == sum(report.figures.sent for report in last.values())
    assert mismatches(roster.figures) == sum(mismatches(report.figures) for report in last.values())
    assert lateness(roster.figures).count == sum(sum(report.figures.late.values()) for report in last.values())
    assert roster.restarts == len(last) - len(newest)


def test_what_a_member_had_read_and_not_sent_when_it_died_is_counted_by_its_successor_alone() -> None:
    roster = Roster(2, range(2))
    roster.report(told(0, figures=Figures(requests=700, sent=200, to_send=500)), NOW)
    roster.report(told(1, figures=Figures(requests=300, sent=300)), NOW)
    assert roster.status.requests == 1000
    # The other has its partitions, and Spark has not found a place for it yet.
    later = Nanos(SILENT_AFTER + 1)
    roster.report(told(1, figures=Figures(requests=800, sent=400, to_send=400)), later)
    roster.tick(later, WALL)
    assert (roster.status.requests, roster.status.sent) == (1000, 600)
    roster.report(told(0, attempt=2, figures=Figures(requests=250, to_send=250)), later)
    roster.report(told(1, figures=Figures(requests=550, sent=450, to_send=100)), later)
    assert (roster.status.requests, roster.status.sent, roster.figures.to_send) == (1000, 650, 350)


def test_the_clock_begins_when_all_members_have_what_they_send_first() -> None:
    roster = Roster(2, range(3))
    roster.report(told(0, is_ready=True, owned=[0, 1, 2]), NOW)
    roster.tick(NOW, WALL)
    assert roster.reference is None, "one member is missing"
    roster.report(told(1, is_ready=True, owned=[2]), NOW)
    roster.report(told(0, is_ready=True, owned=[0]), NOW)
    roster.tick(NOW, WALL)
    assert roster.reference is None, "a partition is on its way from one to the other"
    roster.report(told(0, is_ready=True, owned=[0, 1]), NOW)
    roster.tick(NOW, WALL)
    assert roster.reference is None, "the earliest time is not known yet"
    roster.begins_with(SOURCE)
    roster.tick(NOW, WALL)
    assert roster.reference == Reference(source=SOURCE, wall=WALL + LEAD)


def test_members_that_never_get_ready_are_waited_for_no_longer_than_stated() -> None:
    roster = Roster(2, range(2))
    roster.begins_with(SOURCE)
    roster.tick(READY_WITHIN, WALL)
    assert roster.reference is None, "nobody is there yet"
    roster.report(told(0, is_ready=True, owned=[0]), NOW)
    roster.tick(READY_WITHIN, WALL)
    assert roster.reference is None
    roster.tick(Nanos(READY_WITHIN + 1), WALL)
    assert roster.reference is not None


def test_all_end_when_all_is_done_and_one_that_comes_back_is_told_so_too() -> None:
    roster = Roster(2, range(2))
    roster.report(told(0, is_done=True, owned=[0]), NOW)
    roster.report(told(1, is_done=False, owned=[1]), NOW)
    assert roster.order_for(0, 0) is Order.GO_ON
    roster.report(told(1, is_done=True, owned=[1]), NOW)
    assert roster.order_for(0, 0) is Order.FINISH
    roster.report(told(1, attempt=5), NOW)
    assert roster.order_for(1, 5) is Order.FINISH
    assert roster.order_for(1, 1) is Order.DRAIN, "it has been replaced"


def test_a_member_that_is_gone_for_good_holds_up_nobody() -> None:
    roster = Roster(2, range(2))
    roster.report(told(0, owned=[0]), NOW)
    roster.report(told(1, is_done=True, owned=[1]), NOW)
    assert roster.order_for(1, 1) is Order.GO_ON
    roster.report(told(1, is_done=True, owned=[0, 1]), NOW)
    assert roster.order_for(1, 1) is Order.FINISH


def test_the_clock_of_all_has_stood_as_long_as_that_of_any() -> None:
    roster = Roster(2, range(2))
    for task, stood in ((0, 5), (1, 9), (0, 7), (1, 2)):
        roster.report(told(task, stood=stood), NOW)
    assert roster.stood == 9


def test_who_is_replaced_without_having_left_the_group_is_told_once() -> None:
    roster = Roster(2, range(2))
    roster.report(told(0, attempt=1, group_member="a"), NOW)
    roster.report(told(1, attempt=2, group_member="b", is_last=True), NOW)
    assert roster.take_dead() == []
    roster.report(told(0, attempt=3), NOW)
    roster.report(told(1, attempt=4), NOW)
    assert roster.take_dead() == ["a"]
    assert roster.take_dead() == []


def test_a_member_that_cannot_go_on_ends_all() -> None:
    roster = Roster(2, range(2))
    roster.report(told(1), NOW)
    roster.report(told(0, failure=Failure(line="the target is gone", is_usage=False)), NOW)
    assert roster.order_for(1, 1) is Order.DRAIN
    assert roster.failed is not None
    assert roster.failed.task == 0


def test_the_status_of_a_fleet_is_that_of_its_members_together() -> None:
    def part(number: int, frontier: int | None) -> PartitionStatus:
        return PartitionStatus(
            topic="t", partition=number, frontier=frontier, end=9, lag=None, in_flight=0, oldest=None
        )

    early, late = (datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2))
    roster = Roster(2, range(2))
    one = Status(clock="runs", source_time=late, on_their_way=1, partitions=[part(1, 5), part(0, None)])
    two = Status(clock="the target cannot be reached", source_time=early, on_their_way=2, partitions=[part(0, 7)])
    roster.report(told(0, status=one, figures=Figures(sent=1)), NOW)
    roster.tick(NOW, WALL)
    roster.report(told(1, status=two, figures=Figures(sent=2)), NOW)
    roster.tick(Nanos(1_000_000_000), WALL)
    found = roster.status
    assert (found.sent, found.on_their_way, found.per_second) == (3, 3, 2.0)
    assert (found.source_time, found.clock) == (early, "the target cannot be reached")
    assert [(p.partition, p.frontier) for p in found.partitions] == [(0, 7), (1, 5)]


@given(st.lists(st.integers(0, 10**12)), st.lists(st.integers(0, 10**12)))
def test_a_histogram_that_travelled_is_added_without_loss(one: list[int], two: list[int]) -> None:
    whole, parts = Histogram(), (Histogram(), Histogram())
    merged = Histogram()
    for values, part in zip((one, two), parts, strict=True):
        for value in values:
            whole.add(value)
            part.add(value)
        sent = told(0, figures=Figures(late=part.sparse(), late_total=part.total, late_most=part.most))
        came = read_report(encode(sent)).figures
        merged.merge(came.late, total=came.late_total, most=came.late_most)
    assert (merged.count, merged.total, merged.most) == (whole.count, whole.total, whole.most)
    assert merged.quantile(0.5) == whole.quantile(0.5)


@given(st.integers(0, 10**18), st.integers(0, 10**18), st.integers(-(10**12), 10**12))
def test_members_with_different_clocks_come_to_the_same_moment(driver: int, boot: int, ahead: int) -> None:
    """The same reference on a machine with another wall clock and another monotonic clock is the same moment."""
    reference = Reference(source=SOURCE, wall=driver)
    for elapsed in (0, 5_000_000_000):
        pace = local(
            reference, 1, ahead=Nanos(ahead), wall=Nanos(driver - ahead + elapsed), monotonic=Nanos(boot + elapsed)
        )
        assert (pace.source, pace.wall) == (SOURCE, boot)


def test_who_came_and_has_not_said_its_last_is_waited_for_and_so_are_all_once_all_came() -> None:
    roster = Roster(2, range(2))
    seen = [(roster.is_drained, roster.is_deserted)]
    for report in (told(0), told(0, is_last=True), told(1, is_last=True)):
        roster.report(report, NOW)
        seen.append((roster.is_drained, roster.is_deserted))
    assert seen == [(True, True), (False, False), (True, True), (True, False)]
