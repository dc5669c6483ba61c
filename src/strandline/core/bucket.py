"""A rate that is kept: how long something has to wait before it may go.

In any stretch of time no more goes than the rate allows for it, and the burst besides (or one item that is larger).
"""

from strandline.units import Nanos

SECOND = 1_000_000_000


class Bucket:
    """A token bucket. It is full at first."""

    __slots__ = ("_burst", "_paid_until", "_rate")

    def __init__(self, *, per_second: int, burst: Nanos) -> None:
        """`burst` is how much may go at once, as the time that it takes at the rate."""
        if per_second < 1 or burst < 0:
            raise ValueError("a rate is at least one a second, and a burst not below zero")
        self._rate = per_second
        self._burst = burst
        self._paid_until: int | None = None

    def take(self, amount: int, now: Nanos) -> Nanos:
        """Book the amount; how long to wait before it goes. Whoever comes later waits behind it."""
        full = now - self._burst
        begin = full if self._paid_until is None else max(self._paid_until, full)
        # Rounded up: the rate is a bound.
        self._paid_until = begin - (-amount * SECOND // self._rate)
        return Nanos(max(0, self._paid_until - now))
