"""How much goes to a stream at once, and how fast."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction

from strandline.core.bucket import Bucket
from strandline.core.keyed import MAX_RECORDS, Keyed
from strandline.core.shards import HashRange, Shards, hashes_of
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
    """Keep to what so many shards take, 1,000 records and 1 MiB a second each. None goes as fast as it can."""
    senders: int = 1
    """So many share that out among them."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_request_records", self.max_request_records, MAX_RECORDS),
            ("max_request_bytes", self.max_request_bytes, MAX_REQUEST),
            ("max_record_bytes", self.max_record_bytes, MAX_REQUEST),
            ("in_flight", self.in_flight, 256),
            ("max_held_bytes", self.max_held_bytes, 1 << 40),
            ("shards", 1 if self.shards is None else self.shards, 1 << 20),
            ("senders", self.senders, SHARD_RECORDS),
        ):
            if not 1 <= value <= most:
                raise OptionError(f"{name} is from 1 to {most:,}, not {value:,}")
        if self.timeout <= timedelta():
            raise OptionError("timeout is above 0")


class ShardRate:
    """What the shards of a stream take, each for itself."""

    def __init__(self, ranges: Sequence[HashRange], *, shards: int, senders: int = 1) -> None:
        """Of as many of them as `shards`, shared out evenly over all where there are more; and among the senders."""
        self._shards = Shards(ranges)
        part = Fraction(min(shards, len(ranges)), len(ranges) * senders)
        self._buckets = [
            tuple(Bucket(per_second=max(1, int(most * part)), burst=BURST) for most in (SHARD_RECORDS, SHARD_BYTES))
            for _ in ranges
        ]

    def wait(self, request: Sequence[Keyed], now: Nanos) -> float:
        """So many seconds until it may go: until each of its shards has room for what is its own."""
        counts, sizes = Counter[int](), Counter[int]()
        shards = self._shards.of(hashes_of(record.key.encode() for record in request))
        for shard, record in zip(shards, request, strict=True):
            counts[shard] += 1
            sizes[shard] += record.size
        waits = [
            bucket.take(amount, now)
            for shard in counts
            for bucket, amount in zip(self._buckets[shard], (counts[shard], sizes[shard]), strict=True)
        ]
        return max(waits, default=0) / 1e9
