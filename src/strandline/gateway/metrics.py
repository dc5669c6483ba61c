"""What the gateway counts, as Prometheus reads it."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from strandline.gateway.messages import Replays, State


class Metrics(Collector):
    """The counts, read when somebody asks, with the number of processes that they are of."""

    def __init__(self, state: Callable[[], tuple[State, int]]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state, workers = self._state()
        counts, replays = state.counts, state.replays or Replays(0, 0, 0)
        for name, value, what in (
            ("connections", counts.connections, "Connections of clients"),
            ("refused_connections", counts.refused, "Connections that there was no room for"),
            ("delivered", counts.delivered, "Messages written to clients, replayed ones included"),
            ("replay_requests", counts.replays, "Replays that clients have asked for"),
            ("replay_successes", counts.replays_done, "Replays that came to their end"),
            ("replay_failures", counts.replays_failed, "Replays that were refused or failed"),
            ("replayed", counts.replayed, "Messages replayed"),
            ("slow_closed", counts.slow, "Clients closed since they were too slow"),
        ):
            yield CounterMetricFamily(f"strandline_gateway_{name}", what, value)
        for name, now, what in (
            ("open_connections", state.open_connections, "Connections now"),
            ("partitions", state.partitions, "Partitions that are read"),
            ("recent_bytes", state.recent_bytes, "Bytes of recent records in memory"),
            ("ready", int(not state.trouble), "1 while Kafka is read"),
            ("workers", workers, "Processes that serve"),
            ("loop_lag_seconds", state.lag, "How late the event loop was, of the process where it was latest"),
            ("cold_replays_at_once", replays.at_once, "Replays from Kafka that may go on at once, as things are"),
            ("cold_replays", replays.going_on, "Replays from Kafka that go on"),
            ("cold_replays_waiting", replays.waiting, "Replays from Kafka that wait for others to end"),
        ):
            yield GaugeMetricFamily(f"strandline_gateway_{name}", what, now)
        yield SummaryMetricFamily(
            "strandline_gateway_replay_seconds",
            "How long replays took, waiting for clients included",
            count_value=counts.replays_done,
            sum_value=counts.replay_s,
        )
