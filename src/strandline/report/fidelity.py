"""How true to the captured timing and order a replay was, out of sums over its exchanges."""

from dataclasses import dataclass

from strandline.report.latency import Durations, quantile
from strandline.report.summary import Fidelity


@dataclass(slots=True, kw_only=True)
class Sums:
    """Sums over exchanges; x is when a request was sent, in seconds, and y how late, in microseconds."""

    sent: int = 0
    x: float = 0.0
    y: float = 0.0
    xy: float = 0.0
    xx: float = 0.0
    most_late_us: int | None = None
    out_of_order: int = 0
    connections: int = 0

    def add(self, other: "Sums") -> None:
        """Take another part of the exchanges in."""
        self.sent += other.sent
        self.x += other.x
        self.y += other.y
        self.xy += other.xy
        self.xx += other.xx
        known = [late for late in (self.most_late_us, other.most_late_us) if late is not None]
        self.most_late_us = max(known, default=None)
        self.out_of_order += other.out_of_order
        self.connections += other.connections

    def drift(self) -> float | None:
        """By how much lateness rises in a second, by the least squares; None where nothing can be told."""
        spread = self.sent * self.xx - self.x * self.x
        return None if spread <= 1e-9 else (self.sent * self.xy - self.x * self.y) / spread


def fidelity(sums: Sums, lateness: Durations) -> Fidelity:
    """The fidelity of a replay."""
    most = sums.most_late_us
    quantiles = [quantile(lateness, share) for share in (0.5, 0.99)]
    return Fidelity(
        late_p50_us=quantiles[0] if most is None or quantiles[0] is None else min(quantiles[0], most),
        late_p99_us=quantiles[1] if most is None or quantiles[1] is None else min(quantiles[1], most),
        late_max_us=most,
        drift_us_per_s=sums.drift(),
        order_violations=sums.out_of_order,
        connections=sums.connections,
        reuse=sums.sent / sums.connections if sums.connections else None,
    )
