"""What Prometheus is told of a replay, read from the engine's own counters when it asks; nothing is counted for it."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline.core.histogram import Histogram
from strandline.replay.leave import Reason
from strandline.replay.replay import Replay
from strandline.replay.session import Phase

PREFIX = "strandline_replay_"
LATE_BELOW = tuple(range(16, 38))
"""Powers of two of a nanosecond, which the histogram counts exactly: 66 microseconds to 137 seconds."""


class ReplayCollector(Collector):
    """To be registered; from the thread that answers Prometheus."""

    def __init__(self, run: Replay) -> None:
        self._run = run

    def describe(self) -> list[Metric]:
        """Nothing beforehand: a registry would else collect before there is anything."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it, once the replay has begun."""
        if self._run.is_running:
            yield from self._requests()
            yield from self._state()
            yield from self._partitions()

    def _requests(self) -> Iterator[Metric]:
        run, counters = self._run, self._run.engine.counters
        for name, text, value in (
            ("requests", "Requests read from the capture.", counters.requests),
            ("sent", "Requests sent, each once.", counters.sent),
            ("attempts", "Requests sent, repeats included.", counters.attempts),
            ("answered", "Requests that the target answered.", counters.answered),
            ("failed", "Requests that the target did not answer, or that could not be made.", counters.failed),
            ("unsent", "Requests that were never whole.", counters.unsent),
            ("buried_records", "Records that could not be read, put to the dead letters.", run.buried),
            ("stalls", "Times that the process stood still and had to prove its ownership.", run.engine.stalls),
        ):
            yield CounterMetricFamily(PREFIX + name, text, value=value)
        verdicts = CounterMetricFamily(PREFIX + "verdicts", "Results by verdict.", labels=["verdict"])
        for verdict, count in list(run.output.verdicts.items()):
            verdicts.add_metric([verdict], count)
        yield verdicts
        yield lateness_family(counters.lateness)

    def _state(self) -> Iterator[Metric]:
        engine, output = self._run.engine, self._run.output
        for name, text, value in (
            ("in_flight", "Exchanges with the target that go on.", engine.in_flight),
            ("waiting_requests", "Requests that are read and not finished.", engine.waiting),
            ("unsafe_results", "Results that are not safe yet.", output.unsafe),
            ("spool_memory_bytes", "Requests that wait, in memory.", engine.spools.in_memory),
            ("spool_disk_bytes", "Requests that wait, on disk.", engine.spools.on_disk),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
        reached = engine.timeline.shown()
        if reached is not None:
            text = "The time of the source that it is now, since 1970."
            yield GaugeMetricFamily(PREFIX + "source_time_seconds", text, value=reached / 1e9)
        phases = Counter(session.phase for session in engine.sessions)
        sessions = GaugeMetricFamily(PREFIX + "sessions", "Source connections by what they are at.", labels=["phase"])
        for phase in Phase:
            sessions.add_metric([phase.name.lower()], phases[phase])
        yield sessions
        against = engine.leave.against
        paused = GaugeMetricFamily(PREFIX + "paused", "1 while nothing is sent for this reason.", labels=["reason"])
        for reason in Reason:
            paused.add_metric([reason.name.lower()], reason in against)
        yield paused

    def _partitions(self) -> Iterator[Metric]:
        member, now = self._run.member, self._run.engine.clock.monotonic()
        names = ["topic", "partition"]
        lag = GaugeMetricFamily(PREFIX + "lag", "Offsets between what is done and the end.", labels=names)
        frontier = GaugeMetricFamily(PREFIX + "frontier", "The offset to commit.", labels=names)
        flight = GaugeMetricFamily(PREFIX + "records_in_flight", "Records that are not finished.", labels=names)
        text = "How long the oldest record that is not finished has been in flight."
        age = GaugeMetricFamily(PREFIX + "oldest_unfinished_seconds", text, labels=names)
        for (topic, number), count in member.lag().items():
            lag.add_metric([topic, str(number)], count)
        for (topic, number), offset in member.frontiers().items():
            frontier.add_metric([topic, str(number)], offset)
        for partition in member.progress.owned():
            labels = [partition.topic, str(partition.number)]
            oldest = member.progress.oldest(partition, now)
            flight.add_metric(labels, member.progress.in_flight(partition))
            age.add_metric(labels, 0.0 if oldest is None else oldest.age / 1e9)
        yield from (lag, frontier, flight, age)


def lateness_family(late: Histogram) -> HistogramMetricFamily:
    """How late requests were sent, in buckets that are exact."""
    *counts, total = late.below(LATE_BELOW)
    buckets = [
        (f"{((1 << power) - 1) / 1e9:.9f}", float(count)) for power, count in zip(LATE_BELOW, counts, strict=True)
    ]
    text = "How late requests were sent."
    return HistogramMetricFamily(
        PREFIX + "lateness_seconds", text, buckets=[*buckets, ("+Inf", float(total))], sum_value=late.total / 1e9
    )
