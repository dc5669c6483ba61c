"""What Prometheus is told of an instance of `strandline cdc`, whether it leads or waits."""

import threading
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from strandline.cdc.figures import Figures
from strandline.cdc.lease import Leadership
from strandline.cdc.slot import SlotState
from strandline.cdc.snapshot_record import SnapshotState
from strandline.clock import Clock, SystemClock
from strandline.core.histogram import Histogram
from strandline.core.lag import LogAge
from strandline.units import Nanos

PREFIX = "strandline_cdc_"
EPOCHS_BELOW = tuple(range(26, 38))
"""Powers of two of a nanosecond, which the histogram counts exactly: 67 milliseconds to 137 seconds."""

COUNTED = {
    "events": "Records that the stream accepted.",
    "bytes": "Of those, data and keys.",
    "requests": "Requests to the stream, failed ones too.",
    "retries": "Times that a record had to be sent again.",
    "throttled": "Of those, because the stream or a shard was too slow for us.",
    "dead_letters": "Records that were put away since the stream takes them never.",
    "snapshot_rows": "Rows of snapshots that were delivered; they are among events, or dead letters.",
}


class CdcMetrics(Collector):
    """Counts since the start of the process. Fed and read from any thread."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._epochs = Histogram()
        self._leaderships = 0
        self._leading: Leadership | None = None
        self._moved_at: Nanos | None = None
        self._hottest = 0.0
        self._delay: float | None = None
        self._slot: SlotState | None = None
        self._snapshot: SnapshotState | None = None
        self._reachable: bool | None = None
        self._age = LogAge()

    def led(self, leadership: Leadership | None) -> None:
        """We lead, or no more."""
        with self._lock:
            self._leading = leadership
            self._leaderships += leadership is not None
            self._moved_at = None if leadership is None else self._clock.monotonic()

    def delivered(self, figures: Figures) -> None:
        """An epoch was delivered, or a part of a snapshot."""
        told = (
            ("events", figures.records),
            ("bytes", figures.bytes),
            ("requests", figures.requests),
            ("retries", figures.retried),
            ("throttled", figures.throttled),
            ("dead_letters", figures.dead_lettered),
            ("snapshot_rows", figures.records + figures.dead_lettered if figures.epoch is None else 0),
        )
        with self._lock:
            for name, count in told:
                self._counts[name] += count
            if figures.epoch is None:
                return
            self._moved_at = self._clock.monotonic()
            if figures.records:
                self._hottest = figures.hottest_per_s
            if figures.delay_s is not None:
                self._delay = figures.delay_s

    def epoch(self, took: Nanos) -> None:
        """An epoch took so long, from its planning until Spark had noted it."""
        with self._lock:
            self._epochs.add(took)

    def looked(self, slot: SlotState | None, snapshot: SnapshotState | None = None, *, reachable: bool) -> None:
        """The slot as it stands, and its snapshot; None where there is none, or Postgres could not be asked."""
        with self._lock:
            self._reachable = reachable
            if reachable:
                self._slot, self._snapshot = slot, snapshot
            if slot is not None:
                self._age.look(self._clock.monotonic(), slot.server)

    def describe(self) -> list[Metric]:
        """Nothing beforehand: a registry would else collect before there is anything."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of it, as it is now."""
        with self._lock:
            found = [*self._counted(), *self._standing()]
        yield from found

    def _counted(self) -> Iterator[Metric]:
        for name, text in COUNTED.items():
            yield CounterMetricFamily(PREFIX + name, text, value=self._counts[name])
        yield CounterMetricFamily(PREFIX + "leaderships", "Times that this instance began to lead.", self._leaderships)
        *below, total = self._epochs.below(EPOCHS_BELOW)
        buckets = [
            (f"{((1 << power) - 1) / 1e9:.9f}", float(count)) for power, count in zip(EPOCHS_BELOW, below, strict=True)
        ]
        text = "How long epochs took, from their planning until Spark had noted them."
        yield HistogramMetricFamily(
            PREFIX + "epoch_seconds",
            text,
            buckets=[*buckets, ("+Inf", float(total))],
            sum_value=self._epochs.total / 1e9,
        )

    def _standing(self) -> Iterator[Metric]:
        leading, slot, now = self._leading, self._slot, self._clock.monotonic()
        gauges = [("leading", "1 while this instance leads.", float(leading is not None))]
        if leading is not None and self._moved_at is not None:
            gauges += [
                ("leadership", "The number of our leadership.", leading.number),
                ("lease_seconds", "For how long we lead without another word from Postgres.", leading.left / 1e9),
                ("frontier_age_seconds", "Since an epoch was delivered last.", (now - self._moved_at) / 1e9),
                ("hottest_key_per_second", "Records of the key with the most, in the last epoch.", self._hottest),
            ]
            if self._delay is not None:
                gauges.append(("delay_seconds", "From the last change's commit until it was accepted.", self._delay))
        if self._reachable is not None:
            gauges.append(("postgres_up", "Whether Postgres answered when it was asked last.", self._reachable))
        if slot is not None:
            behind = self._age.behind(now, slot.confirmed) / 1e9
            gauges += [
                ("lag_bytes", "Of the log, behind what is acknowledged.", slot.lag),
                ("lag_seconds", "For how long the log has gone beyond what is acknowledged.", behind),
            ]
        if (snapshot := self._snapshot) is not None:
            gauges += [
                ("snapshot_tables", "Tables whose rows are to be sent before the changes.", len(snapshot.tables)),
                ("snapshot_tables_finished", "Of those, delivered to their end.", snapshot.tables_finished),
                ("snapshot_chunks", "Chunks of those tables.", snapshot.chunks),
                ("snapshot_chunks_done", "Of those, delivered.", snapshot.chunks_done),
                (
                    "snapshot_finished",
                    "1 when all rows are delivered, and changes follow.",
                    snapshot.finished is not None,
                ),
            ]
        for name, text, value in gauges:
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
