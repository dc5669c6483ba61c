"""How much a shard takes: so many records and bytes a second, and what was not used for one second at most."""

from strandline.units import Nanos

SECOND = 1_000_000_000


class Allowance:
    """Two buckets that fill with time; a record takes from both or from none.

    In whole numbers (records and bytes, times 10^9), so that nothing is lost to rounding however often it is asked. A
    record larger than a second's bytes passes when the bucket is full, and is paid off afterwards.
    """

    __slots__ = ("_bytes", "_bytes_per_s", "_records", "_records_per_s", "_then")

    def __init__(self, *, records_per_s: int, bytes_per_s: int, now: Nanos) -> None:
        if records_per_s < 1 or bytes_per_s < 1:
            raise ValueError("an allowance is at least one record and one byte a second")
        self._records_per_s = records_per_s
        self._bytes_per_s = bytes_per_s
        self._records = records_per_s * SECOND
        self._bytes = bytes_per_s * SECOND
        self._then = now

    def take(self, size: int, now: Nanos) -> bool:
        """Let a record of so many bytes pass, if there is enough for it."""
        if (passed := now - self._then) > 0:
            self._then = now
            self._records = min(self._records_per_s * SECOND, self._records + passed * self._records_per_s)
            self._bytes = min(self._bytes_per_s * SECOND, self._bytes + passed * self._bytes_per_s)
        if self._records < SECOND or self._bytes < min(size, self._bytes_per_s) * SECOND:
            return False
        self._records -= SECOND
        self._bytes -= size * SECOND
        return True
