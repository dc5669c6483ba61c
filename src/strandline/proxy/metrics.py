"""What the proxy counts, and as Prometheus reads it: connections, requests by cluster and API, clusters that answer."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strandline.proxy.messages import Counted, State
from strandline.wire.kafka_frames import api_name


@dataclass(slots=True)
class Counts:
    """Since the start."""

    requests: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """By the cluster of the connection, API and version."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Connections that ended for a reason, by cluster and kind of reason."""
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)

    def counted(self) -> Counted:
        """All of it, as it is sent and shown."""
        return Counted(
            [(*labels, count) for labels, count in list(self.requests.items())],
            [(*labels, count) for labels, count in list(self.failures.items())],
            dict(self.bytes_in),
            dict(self.bytes_out),
        )

    def add(self, other: Counted) -> None:
        """Count what another process has counted too."""
        for name, api_key, version, count in other.requests:
            self.requests[name, api_key, version] += count
        for name, reason, count in other.failures:
            self.failures[name, reason] += count
        self.bytes_in.update(other.bytes_in)
        self.bytes_out.update(other.bytes_out)


class Metrics(Collector):
    """The counts, read when somebody asks."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        state = self._state()
        yield GaugeMetricFamily("strandline_proxy_connections", "Open connections of clients.", state.connections)
        yield GaugeMetricFamily("strandline_proxy_workers", "Processes that serve.", state.workers)
        up = GaugeMetricFamily("strandline_proxy_cluster_up", "Whether a cluster answers.", labels=["cluster"])
        for name, cluster in state.clusters.items():
            up.add_metric([name], float(cluster.is_up))
        yield up
        asked = CounterMetricFamily(
            "strandline_proxy_requests", "Requests of clients.", labels=["cluster", "api", "version"]
        )
        for name, api_key, version, count in state.counted.requests:
            asked.add_metric([name, api_name(api_key), str(version)], count)
        yield asked
        failed = CounterMetricFamily(
            "strandline_proxy_failed_connections", "Connections that ended for a reason.", labels=["cluster", "reason"]
        )
        for name, reason, count in state.counted.failures:
            failed.add_metric([name, reason], count)
        yield failed
        for direction, passed in (("in", state.counted.bytes_in), ("out", state.counted.bytes_out)):
            total = CounterMetricFamily(
                f"strandline_proxy_bytes_{direction}",
                f"Bytes {direction} over clients' connections.",
                labels=["cluster"],
            )
            for name, count in passed.items():
                total.add_metric([name], count)
            yield total
