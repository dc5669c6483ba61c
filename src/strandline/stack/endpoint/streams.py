"""The streams of the endpoint: what was accepted, in order per shard, within a bound of bytes."""

import logging
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec import Struct

from strandline.core.allowance import Allowance
from strandline.core.shards import HASH_KEYS, HashRange, Shards, even_ranges, hash_from, hashes_of
from strandline.stack.endpoint.faults import Throttle
from strandline.units import Nanos
from strandline.wire.kinesis import KIB, MAX_RECORD_KIB, Entry, Refused, check_sizes

ACCOUNT: Final = "123456789012"
MAX_SHARDS: Final = 10_000
"""Of all streams together."""
RECORD_OVERHEAD: Final = 200
"""What a kept record takes beyond its bytes."""
NUMBER_DIGITS: Final = 20
THROTTLED: Final = "ProvisionedThroughputExceededException"

log = logging.getLogger(__name__)

Fails = Callable[[], str | None]
"""Asked for each record in turn: the code with which it fails, or None."""


class Moment(NamedTuple):
    """When a request came: on the wall, never running back, and by the clock that throttling counts with."""

    ms: int
    monotonic: Nanos


class Counts(Struct, kw_only=True):
    """What has come to a stream. Requests are those that put records."""

    requests: int = 0
    refused_requests: int = 0
    """By a limit or a fault."""
    unanswered_requests: int = 0
    records: int = 0
    """Accepted."""
    bytes: int = 0
    """Of the accepted records, keys included."""
    failed_records: int = 0
    throttled_records: int = 0


class Shard:
    """One shard: its records in order. The first has the number 1."""

    __slots__ = ("allowance", "arrivals", "entries", "hashes", "next", "result", "sequence", "shard_id")

    def __init__(self, index: int, hashes: HashRange, created_ms: int) -> None:
        self.shard_id = f"shardId-{index:012d}"
        self.hashes = hashes
        self.sequence = f"49{created_ms:014d}{index:020d}"
        """What all its sequence numbers begin with."""
        self.result = b'{"SequenceNumber":"%b%%0%dd","ShardId":"%b"}' % (
            self.sequence.encode(),
            NUMBER_DIGITS,
            self.shard_id.encode(),
        )
        self.entries: list[Entry] = []
        self.arrivals = array("q")
        self.next = 1
        self.allowance: Allowance | None = None
        """While the stream is throttled."""

    @property
    def first(self) -> int:
        """The number of the first record that is kept, or of the next to come."""
        return self.next - len(self.entries)

    def sequence_number(self, number: int) -> str:
        """A record's number as Kinesis writes it."""
        return f"{self.sequence}{number:0{NUMBER_DIGITS}d}"

    def number_of(self, sequence_number: str) -> int:
        """The number that a sequence number of this shard stands for."""
        digits = sequence_number[len(self.sequence) :]
        if not sequence_number.startswith(self.sequence) or len(digits) != NUMBER_DIGITS or int(digits) >= self.next:
            raise Refused(
                "InvalidArgumentException",
                f"StartingSequenceNumber {sequence_number} is not one of {self.shard_id}.",
            )
        return int(digits)

    def number_at(self, ms: float) -> int:
        """The number of the first record that came at a time or later."""
        return self.first + bisect_left(self.arrivals, ms)

    def page(self, start: int, *, records: int, size: int) -> tuple[int, int]:
        """From which number up to which to read: so many at most, and so many bytes, but for one record alone."""
        start = max(start, self.first)
        end, total = start, 0
        for entry in self.entries[start - self.first : start - self.first + records]:
            total += len(entry.data) + len(entry.partition_key)
            if total > size and end > start:
                break
            end += 1
        return start, end


@dataclass(slots=True)
class Stream:
    """One stream."""

    name: str
    created_ms: int
    shards: list[Shard]
    mode: str
    max_record_kib: int
    counts: Counts = field(default_factory=Counts)
    kept_bytes: int = 0
    is_throttled: bool = False
    map: Shards = field(init=False)

    def __post_init__(self) -> None:
        self.map = Shards([shard.hashes for shard in self.shards])

    @property
    def arn(self) -> str:
        """Its name in all of AWS."""
        return f"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/{self.name}"

    def shard(self, shard_id: str) -> Shard:
        """A shard by its name."""
        number = shard_id.removeprefix("shardId-")
        index = int(number) if number.isascii() and number.isdigit() else len(self.shards)
        if index >= len(self.shards) or self.shards[index].shard_id != shard_id:
            raise Refused(
                "ResourceNotFoundException",
                f"Shard {shard_id} in stream {self.name} under account {ACCOUNT} does not exist",
            )
        return self.shards[index]

    def throttle(self, throttle: Throttle | None, now: Nanos) -> None:
        """Take no more than so much a second from now on."""
        self.is_throttled = throttle is not None
        for shard in self.shards:
            shard.allowance = (
                None
                if throttle is None
                else Allowance(records_per_s=throttle.records_per_s, bytes_per_s=throttle.bytes_per_s, now=now)
            )


class Streams:
    """All of them. What is kept of all together has a bound; where it is 0 nothing is kept, only counted."""

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self.kept_bytes = 0
        self._streams: dict[str, Stream] = {}
        self._is_full = False

    def __getitem__(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is None:
            raise Refused("ResourceNotFoundException", f"Stream {name} under account {ACCOUNT} not found.")
        return stream

    def get(self, name: str) -> Stream | None:
        """A stream, if it is there."""
        return self._streams.get(name)

    def names(self) -> list[str]:
        """Of all streams, in order."""
        return sorted(self._streams)

    def create(self, name: str, shards: int, now: Moment, *, mode: str, max_record_kib: int = MAX_RECORD_KIB) -> Stream:
        """A new stream."""
        if name in self._streams:
            raise Refused("ResourceInUseException", f"Stream {name} under account {ACCOUNT} already exists.")
        if shards + sum(len(stream.shards) for stream in self._streams.values()) > MAX_SHARDS:
            raise Refused("LimitExceededException", f"This endpoint has at most {MAX_SHARDS} shards.")
        made = [Shard(index, hashes, now.ms) for index, hashes in enumerate(even_ranges(shards))]
        self._streams[name] = stream = Stream(name, now.ms, made, mode, max_record_kib)
        return stream

    def delete(self, name: str) -> None:
        """A stream and all in it."""
        self.kept_bytes -= self[name].kept_bytes
        del self._streams[name]
        self._is_full = False

    def put(
        self,
        stream: Stream,
        entries: Sequence[Entry],
        now: Moment,
        *,
        fails: Fails | None = None,
        shuffle: Callable[[list[int]], None] | None = None,
        is_single: bool = False,
    ) -> tuple[int, bytes]:
        """Accept records, each unless a fault hits it. How many failed, and what is answered for each, as JSON."""
        keys = [entry.partition_key.encode() for entry in entries]
        sizes = [len(entry.data) + len(key) for entry, key in zip(entries, keys, strict=True)]
        check_sizes(sizes, limit=stream.max_record_kib * KIB, is_single=is_single)
        keeps = self.keep_bytes > 0
        if keeps:
            self._check_room(sum(sizes) + RECORD_OVERHEAD * len(sizes))
        shards = stream.shards
        places = [shards[index] for index in stream.map.of(_hashes(entries, keys))]
        results = [shard.result for shard in places]
        passed: Sequence[int] = range(len(entries))
        if fails is not None or stream.is_throttled:
            passed = _sift(stream, sizes, places, results, now=now.monotonic, fails=fails)
        if shuffle is not None:
            shuffle(passed := list(passed))
        numbers = [0] * len(entries)
        for index in passed:
            shard = places[index]
            numbers[index] = number = shard.next
            shard.next = number + 1
            if keeps:
                shard.entries.append(entries[index])
                shard.arrivals.append(now.ms)
        size = sum(sizes) if len(passed) == len(sizes) else sum(sizes[index] for index in passed)
        stream.counts.records += len(passed)
        stream.counts.bytes += size
        if keeps:
            kept = size + RECORD_OVERHEAD * len(passed)
            stream.kept_bytes += kept
            self.kept_bytes += kept
        # The numbers begin with 1, so a 0 is that of a record that failed, whose result has no place for one.
        return len(entries) - len(passed), b",".join(results) % tuple(filter(None, numbers))

    def _check_room(self, needed: int) -> None:
        if self.kept_bytes + needed <= self.keep_bytes:
            return
        problem = (
            f"the endpoint keeps at most {self.keep_bytes:,} bytes of records, and that is reached: "
            "delete streams, or start it with a larger keep_bytes (0 keeps nothing)"
        )
        if not self._is_full:
            self._is_full = True
            log.error("%s", problem)
        # A code that no sender knows, so that none goes on trying.
        raise Refused("EndpointFull", problem)


def _hashes(entries: Sequence[Entry], keys: Sequence[bytes]) -> list[bytes]:
    hashes = hashes_of(keys)
    for index, entry in enumerate(entries):
        if entry.explicit_hash_key is not None:
            hashes[index] = _explicit(entry.explicit_hash_key)
    return hashes


def _sift(
    stream: Stream,
    sizes: Sequence[int],
    places: Sequence[Shard],
    results: list[bytes],
    *,
    now: Nanos,
    fails: Fails | None,
) -> Sequence[int]:
    """Which records are accepted although there are faults; what is answered for the others goes into the results."""
    passed = []
    counts = stream.counts
    for index, (size, shard) in enumerate(zip(sizes, places, strict=True)):
        if fails is not None and (code := fails()) is not None:
            counts.failed_records += 1
            results[index] = _failure(code, stream, shard)
        elif shard.allowance is not None and not shard.allowance.take(size, now):
            counts.throttled_records += 1
            results[index] = _failure(THROTTLED, stream, shard)
        else:
            passed.append(index)
    return passed


def _failure(code: str, stream: Stream, shard: Shard) -> bytes:
    message = "Internal service failure."
    if code == THROTTLED:
        message = f"Rate exceeded for shard {shard.shard_id} in stream {stream.name} under account {ACCOUNT}."
    return b'{"ErrorCode":"%b","ErrorMessage":"%b"}' % (code.encode(), message.encode())


def _explicit(text: str) -> bytes:
    number = int(text)
    if number >= HASH_KEYS:
        raise Refused("InvalidArgumentException", f"ExplicitHashKey {text} is no number below 2^128.")
    return hash_from(number)
