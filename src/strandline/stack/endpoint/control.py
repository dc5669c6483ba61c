"""What a test asks the endpoint beside Kinesis' API, and what it is told: faults, counts, all that was accepted.

    GET  /health
    POST /faults    Orders        -> nothing
    POST /counts    Asked         -> Counts, as JSON
    POST /records   AskedPage     -> Page, as MessagePack: data stays bytes

Bodies are JSON and say so in their Content-Type, which no page of a stranger can do unasked.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from strandline.stack.endpoint.streams import Stream

PAGE_RECORDS: Final = 20_000
PAGE_BYTES: Final = 4 << 20

HEALTH, FAULTS, COUNTS, RECORDS = "/health", "/faults", "/counts", "/records"
JSON: Final = "application/json"
MESSAGE_PACK: Final = "application/msgpack"

Name = Annotated[str, Meta(min_length=1, max_length=128)]
Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of a stream."""

    stream: Name


class AskedPage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records of a stream's shard, by its index, from a number on."""

    stream: Name
    shard: Number = 0
    start: Number = 0


class Page(Struct, frozen=True, array_like=True):
    """Records in order, each as its arrival in milliseconds, its key and its data."""

    shards: int
    """How many the stream has."""
    shard_id: str
    sequence: str
    """What the shard's sequence numbers begin with; each ends in the record's number, in 20 digits."""
    start: int
    """The number of the first record here."""
    is_last: bool
    records: list[tuple[int, str, bytes]]


def page(stream: Stream, asked: AskedPage) -> Page:
    """The next records of a shard: none of them if there is no such shard."""
    if asked.shard >= len(stream.shards):
        return Page(len(stream.shards), "", "", 0, is_last=True, records=[])
    shard = stream.shards[asked.shard]
    start, end = shard.page(asked.start, records=PAGE_RECORDS, size=PAGE_BYTES)
    first = shard.first
    entries, arrivals = shard.entries[start - first : end - first], shard.arrivals[start - first : end - first]
    return Page(
        len(stream.shards),
        shard.shard_id,
        shard.sequence,
        start,
        is_last=end >= shard.next,
        records=[(ms, entry.partition_key, entry.data) for ms, entry in zip(arrivals, entries, strict=True)],
    )


encode_page = msgspec.msgpack.Encoder().encode
decode_page = msgspec.msgpack.Decoder(Page).decode
