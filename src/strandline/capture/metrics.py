"""What the capture counts, as plain numbers that cost next to nothing, and as Prometheus reads them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strandline.capture.publisher import Publisher


@dataclass(slots=True)
class Counts:
    """Since the start, but for what is said to be now."""

    connections: int = 0
    open_connections: int = 0
    """Now."""
    sampled: int = 0
    requests: int = 0
    unrecorded: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    held_now: int = 0
    released: int = 0
    released_wait_s: float = 0.0
    timed_out: int = 0
    upstream_failures: int = 0
    idle_closed: int = 0
    opaque: dict[str, int] = field(default_factory=lambda: {"upgrade": 0, "request": 0, "response": 0})
    """By what made them so."""


class Metrics(Collector):
    """The counts, read when somebody asks."""

    def __init__(self, counts: Counts, publisher: Publisher) -> None:
        self._counts = counts
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        counts, publisher = self._counts, self._publisher
        for name, value, what in (
            ("connections", counts.connections, "Connections of clients"),
            ("recorded_connections", counts.sampled, "Connections that are recorded"),
            ("requests", counts.requests, "Complete requests on recorded connections"),
            ("unrecorded_requests", counts.unrecorded, "Of these, how many came while a lost record was in the way"),
            ("records_published", publisher.published, "Records that Kafka has acknowledged"),
            ("records_failed", publisher.failed, "Records that Kafka has refused"),
            ("records_dropped", publisher.dropped, "Records that there was no room for"),
            ("dropped_bytes", publisher.dropped_bytes, "Bytes of records that there was no room for"),
            ("released_timed_out", counts.timed_out, "Held requests that went on without word from Kafka"),
            ("upstream_failures", counts.upstream_failures, "Connections that the upstream did not take"),
            ("idle_closed", counts.idle_closed, "Connections closed since nothing came for too long"),
        ):
            yield CounterMetricFamily(f"strandline_capture_{name}", what, value)
        passed = CounterMetricFamily("strandline_capture_bytes", "Bytes passed on", labels=["to"])
        passed.add_metric(["upstream"], counts.bytes_in)
        passed.add_metric(["client"], counts.bytes_out)
        yield passed
        opaque = CounterMetricFamily("strandline_capture_opaque_connections", "No longer followed", labels=["why"])
        for why, number in counts.opaque.items():
            opaque.add_metric([why], number)
        yield opaque
        for name, now, what in (
            ("open_connections", counts.open_connections, "Connections now"),
            ("held_requests", counts.held_now, "Requests that wait for Kafka now"),
            ("buffered_bytes", publisher.waiting_bytes, "Bytes of records that Kafka has not acknowledged"),
            ("losing", int(publisher.is_losing), "1 while records are dropped"),
        ):
            yield GaugeMetricFamily(f"strandline_capture_{name}", what, now)
        yield SummaryMetricFamily(
            "strandline_capture_release_wait_seconds",
            "How long requests were held back",
            count_value=counts.released,
            sum_value=counts.released_wait_s,
        )
