"""Which shard of a Kinesis stream a record belongs to: ranges of 128-bit numbers, and the MD5 of a key among them."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5

HASH_BYTES = 16
HASH_KEYS = 1 << 8 * HASH_BYTES


@dataclass(frozen=True, slots=True)
class HashRange:
    """The hash keys of a shard, both ends within."""

    first: int
    last: int


def even_ranges(shards: int) -> list[HashRange]:
    """The ranges of a new stream: all as wide, and the last one with what is left over."""
    if shards < 1:
        raise ValueError(f"a stream of {shards} shards")
    width = HASH_KEYS // shards
    ends = [width * number - 1 for number in range(1, shards)] + [HASH_KEYS - 1]
    return [HashRange(width * number, end) for number, end in enumerate(ends)]


def hashes_of(partition_keys: Iterable[bytes]) -> list[bytes]:
    """The hash keys of partition keys in UTF-8."""
    return [md5(key, usedforsecurity=False).digest() for key in partition_keys]


def hash_from(number: int) -> bytes:
    """The hash key that a producer names itself."""
    if not 0 <= number < HASH_KEYS:
        raise ValueError(f"{number} is no hash key")
    return number.to_bytes(HASH_BYTES, "big")


class Shards:
    """Finds the shards of hash keys. They are compared as bytes: no number is made for a record."""

    __slots__ = ("_starts",)

    def __init__(self, ranges: Sequence[HashRange]) -> None:
        self._starts = [hash_from(each.first) for each in ranges]

    def of(self, hash_keys: Iterable[bytes]) -> list[int]:
        """The index of each one's shard."""
        starts = self._starts
        return [bisect_right(starts, hash_key) - 1 for hash_key in hash_keys]
