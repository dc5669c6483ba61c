"""What Prometheus is told of a fleet is what its members reported, those that were replaced included."""

from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from strandline.replay.fleet_metrics import FleetCollector
from strandline.replay.messages import Figures, Report
from strandline.replay.roster import Roster
from strandline.replay.status import PartitionStatus, Status, Unfinished
from strandline.units import Nanos
from tests.replay.test_metrics import LABELLED, samples

SECOND = 1_000_000_000


def page(roster: Roster | None) -> LABELLED:
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: roster))
    return samples(generate_latest(registry).decode())


def status(partition: int, lag: int, age: float) -> Status:
    oldest = Unfinished(offset=5, age_s=age, waits_for="its time")
    place: dict[str, Any] = {"topic": "t", "partition": partition, "frontier": 5, "end": 5 + lag, "in_flight": 1}
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return Status(
        clock="runs", source_time=time, on_their_way=2, partitions=[PartitionStatus(**place, lag=lag, oldest=oldest)]
    )


def test_a_fleet_without_members_tells_nothing() -> None:
    assert not page(None)


def test_a_fleet_shows_what_its_line_of_progress_does() -> None:
    roster = Roster(2, range(2))

    def told(task: int, attempt: int, sent: int, **changes: Any) -> Report:
        figures = Figures(sent=sent, answered=sent, verdicts={"match": sent - 1, "status_differs": 1}, late={3: sent})
        return Report(task=task, attempt=attempt, host="h", pid=1, at=0, figures=figures, **changes)

    roster.report(told(0, 0, 10), Nanos(0))
    roster.tick(Nanos(0), Nanos(0))
    # The first member was killed and is back; the second's clock is two seconds ahead of the driver's.
    roster.report(told(0, 2, 20, status=status(0, 7, 1.5)), Nanos(SECOND))
    roster.report(told(1, 1, 30, status=status(1, 4, 0.5), ahead=-2 * SECOND, doubt=1000), Nanos(SECOND))
    roster.tick(Nanos(SECOND), Nanos(SECOND))
    found = page(roster)
    counts = {"sent": 60, "answered": 60, "failed": 0, "mismatches": 3, "restarts": 1}
    assert {name: found[f"{name}_total", ""] for name in counts} == counts
    assert found["verdicts_total", "match"] == 57
    assert found["lateness_seconds_count", ""] == 60
    assert (found["members", ""], found["workers", ""]) == (2, 2)
    assert found["sent_per_second", ""] == 50
    assert found["in_flight", ""] == 4
    assert (found["lag", "0"], found["lag", "1"]) == (7, 4)
    assert found["oldest_unfinished_seconds", "0"] == 1.5
    assert found["source_time_seconds", ""] == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert (found["clock_ahead_seconds", "0"], found["clock_ahead_seconds", "1"]) == (0, 2)
