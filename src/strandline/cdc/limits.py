"""How much goes to a stream at once, and how fast."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from strandline.core.bucket import Bucket
from strandline.core.keyed import MAX_RECORDS, Keyed
from strandline.errors import OptionError
from strandline.units import Nanos, nanos

MIB = 1 << 20
MAX_REQUEST = 10 * MIB
SHARD_RECORDS = 1_000
SHARD_BYTES = MIB
BURST = nanos(timedelta(milliseconds=250))


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    """What a user may set."""

    max_request_records: int = MAX_RECORDS
    max_request_bytes: int = 4 * MIB
    """Of data and keys; a record that is larger goes alone."""
    max_record_bytes: int = MIB
    """As the stream is set, data and key together. Larger records are dead letters."""
    in_flight: int = 8
    """Requests at once; so many times the size of a request is on its way at the most."""
    max_held_bytes: int = 64 * MIB
    """No batch is taken while so much waits."""
    timeout: timedelta = timedelta(seconds=10)
    """Of each request."""
    shards: int | None = None
    """Keep to what so many shards take: 1,000 records and 1 MiB a second each. None goes as fast as it can."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_request_records", self.max_request_records, MAX_RECORDS),
            ("max_request_bytes", self.max_request_bytes, MAX_REQUEST),
            ("max_record_bytes", self.max_record_bytes, MAX_REQUEST),
            ("in_flight", self.in_flight, 256),
            ("max_held_bytes", self.max_held_bytes, 1 << 40),
            ("shards", 1 if self.shards is None else self.shards, 1 << 20),
        ):
            if not 1 <= value <= most:
                raise OptionError(f"{name} is from 1 to {most:,}, not {value:,}")
        if self.timeout <= timedelta():
            raise OptionError("timeout is above 0")


class ShardRate:
    """What so many shards take."""

    def __init__(self, shards: int) -> None:
        self._records = Bucket(per_second=shards * SHARD_RECORDS, burst=BURST)
        self._bytes = Bucket(per_second=shards * SHARD_BYTES, burst=BURST)

    def wait(self, request: Sequence[Keyed], now: Nanos) -> float:
        """So many seconds until it may go."""
        size = sum(record.size for record in request)
        return max(self._records.take(len(request), now), self._bytes.take(size, now)) / 1e9
