"""What the gateway counts, as plain numbers that cost next to nothing, and as Prometheus reads them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from strandline.gateway.server import Gateway


@dataclass(slots=True)
class Counts:
    """Since the start."""

    connections: int = 0
    refused: int = 0
    replays: int = 0
    replays_done: int = 0
    replays_failed: int = 0
    replay_s: float = 0.0
    replayed: int = 0
    slow: int = 0


class Metrics(Collector):
    """The counts, read when somebody asks."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway, counts = self._gateway, self._gateway.counts
        for name, value, what in (
            ("connections", counts.connections, "Connections of clients"),
            ("refused_connections", counts.refused, "Connections that there was no room for"),
            ("delivered", gateway.hub.delivered, "Messages written to clients, replayed ones included"),
            ("replay_requests", counts.replays, "Replays that clients have asked for"),
            ("replay_successes", counts.replays_done, "Replays that came to their end"),
            ("replay_failures", counts.replays_failed, "Replays that were refused or failed"),
            ("replayed", counts.replayed, "Messages replayed"),
            ("slow_closed", counts.slow, "Clients closed since they were too slow"),
        ):
            yield CounterMetricFamily(f"strandline_gateway_{name}", what, value)
        held = sum(feed.recent.nbytes for feed in gateway.hub.feeds.values())
        for name, now, what in (
            ("open_connections", gateway.connections, "Connections now"),
            ("partitions", len(gateway.hub.feeds), "Partitions that are read"),
            ("recent_bytes", held, "Bytes of recent records in memory"),
            ("ready", int(not gateway.not_ready()), "1 while Kafka is read"),
        ):
            yield GaugeMetricFamily(f"strandline_gateway_{name}", what, now)
        yield SummaryMetricFamily(
            "strandline_gateway_replay_seconds",
            "How long replays took, waiting for clients included",
            count_value=counts.replays_done,
            sum_value=counts.replay_s,
        )
