"""What Prometheus is told of a fleet, by its driver: what the members reported last, under the names of one member."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline.replay.metrics import PREFIX, lateness_family
from strandline.replay.roster import Roster, lateness, mismatches


class FleetCollector(Collector):
    """To be registered; from the thread that answers Prometheus."""

    def __init__(self, find: Callable[[], Roster | None]) -> None:
        self._find = find

    def describe(self) -> list[Metric]:
        """Nothing beforehand: a registry would else collect before there is anything."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it, once there are to be members."""
        roster = self._find()
        if roster is not None:
            yield from _requests(roster)
            yield from _state(roster)
            yield from _partitions(roster)


def _requests(roster: Roster) -> Iterator[Metric]:
    figures = roster.figures
    for name, text, value in (
        ("sent", "Requests sent, by all members, those that are gone too.", figures.sent),
        ("answered", "Requests that the target answered.", figures.answered),
        ("failed", "Requests that the target did not answer, or that could not be made.", figures.failed),
        ("unsent", "Requests that were never whole.", figures.unsent),
        ("buried_records", "Records that could not be read, put to the dead letters.", figures.buried),
        ("mismatches", "Answers that were not the source's.", mismatches(figures)),
        ("restarts", "Members that were started anew.", roster.restarts),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)
    verdicts = CounterMetricFamily(PREFIX + "verdicts", "Results by verdict.", labels=["verdict"])
    for verdict, count in figures.verdicts.items():
        verdicts.add_metric([verdict], count)
    yield verdicts
    yield lateness_family(lateness(figures))


def _state(roster: Roster) -> Iterator[Metric]:
    status = roster.status
    for name, text, value in (
        ("members", "Members that are at work.", sum(not member.is_last for member in roster.members)),
        ("workers", "Members that there are to be.", roster.workers),
        ("sent_per_second", "Requests sent in a second, over the last ten.", status.per_second or 0.0),
        ("in_flight", "Exchanges with the target that go on.", status.on_their_way),
        ("waiting_requests", "Requests that are read and not finished.", status.waiting),
        ("unsafe_results", "Results that are not safe yet.", status.unsafe),
    ):
        yield GaugeMetricFamily(PREFIX + name, text, value=value)
    if status.source_time is not None:
        text = "The time of the source that it is now, since 1970."
        yield GaugeMetricFamily(PREFIX + "source_time_seconds", text, value=status.source_time.timestamp())
    clocks = GaugeMetricFamily(
        PREFIX + "clock_ahead_seconds",
        "By how much a member's clock is ahead of the driver's, as far as that can be told.",
        labels=["host", "member"],
    )
    for member in roster.members:
        known = -member.ahead if abs(member.ahead) > member.doubt else 0
        clocks.add_metric([member.host, str(member.task)], known / 1e9)
    yield clocks


def _partitions(roster: Roster) -> Iterator[Metric]:
    names = ["topic", "partition"]
    lag = GaugeMetricFamily(PREFIX + "lag", "Offsets between what is done and the end.", labels=names)
    text = "How long the oldest record that is not finished has been in flight."
    age = GaugeMetricFamily(PREFIX + "oldest_unfinished_seconds", text, labels=names)
    for partition in roster.status.partitions:
        labels = [partition.topic, str(partition.partition)]
        if partition.lag is not None:
            lag.add_metric(labels, partition.lag)
        age.add_metric(labels, 0.0 if partition.oldest is None else partition.oldest.age_s)
    yield from (lag, age)
