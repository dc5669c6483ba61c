"""How values are spread, in a fixed number of counters: quantiles good to an eighth, whatever the count."""

from collections.abc import Iterable, Mapping

from strandline.units import Nanos

STEPS = 8
"""Buckets for each doubling."""
SHIFT = 3


class Histogram:
    """Counts of durations by size. What is below zero counts as zero."""

    __slots__ = ("_counts", "count", "most", "total")

    def __init__(self) -> None:
        self._counts = [0] * (64 * STEPS)
        self.count = 0
        self.total = 0
        self.most = 0

    def add(self, value: int) -> None:
        """One more."""
        if value < 0:
            value = 0
        elif value > self.most:
            self.most = value
        self.count += 1
        self.total += value
        self._counts[_bucket(value)] += 1

    def quantile(self, share: float) -> Nanos:
        """A value that this share of all does not exceed, at most an eighth too high; 0 when there is none."""
        wanted = share * self.count
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return Nanos(min(self.most, _ceiling(bucket)))
        return Nanos(self.most)

    def sparse(self) -> dict[int, int]:
        """The counters that are not 0, by their number: all that `merge` needs but the total and the most."""
        return {bucket: count for bucket, count in enumerate(self._counts) if count}

    def merge(self, counts: Mapping[int, int], *, total: int, most: int) -> None:
        """Add what another one has counted."""
        for bucket, count in counts.items():
            self._counts[bucket] += count
            self.count += count
        self.total += total
        self.most = max(self.most, most)

    def below(self, powers: Iterable[int]) -> list[int]:
        """How many values are below each of these powers of two, and how many there are in all: exact counts."""
        counts = list(self._counts)
        return [sum(counts[: _bucket(1 << power)]) for power in powers] + [sum(counts)]


def _bucket(value: int) -> int:
    if value < STEPS:
        return value
    exponent = value.bit_length() - 1 - SHIFT
    return min(64 * STEPS - 1, (exponent << SHIFT) + (value >> exponent))


def _ceiling(bucket: int) -> int:
    """The highest value of a bucket."""
    if bucket < 2 * STEPS:
        return bucket
    exponent = (bucket >> SHIFT) - 1
    return ((bucket - (exponent << SHIFT) + 1) << exponent) - 1
