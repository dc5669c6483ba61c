"""Writes record batches, plainly: what the decoder is measured by. Follows Kafka's published format, field by field."""

import gzip
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cramjam
from crc32c import crc32c


@dataclass(frozen=True, slots=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def varint(number: int) -> bytes:
    coded = (number << 1) ^ (number >> 63)
    coded &= (1 << 64) - 1
    out = bytearray()
    while coded > 0x7F:
        out.append(coded & 0x7F | 0x80)
        coded >>= 7
    out.append(coded)
    return bytes(out)


def field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def body(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    headers = b"".join(field(key) + field(value) for key, value in record.headers)
    content = (
        b"\0"
        + varint(record.timestamp - base_timestamp)
        + varint(record.offset - base_offset)
        + field(record.key)
        + field(record.value)
        + varint(len(record.headers))
        + headers
    )
    return varint(len(content)) + content


def snappy_of_java(payload: bytes) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(payload[at : at + 1000])) for at in range(0, len(payload), 1000)]
    header = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


PACK: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, lambda payload: payload),
    "gzip": (1, gzip.compress),
    "snappy": (2, lambda payload: bytes(cramjam.snappy.compress_raw(payload))),
    "snappy of Java": (2, snappy_of_java),
    "lz4": (3, lambda payload: bytes(cramjam.lz4.compress(payload))),
    "zstd": (4, lambda payload: bytes(cramjam.zstd.compress(payload))),
}


def batch(
    records: Sequence[Record],
    *,
    base_offset: int,
    codec: str = "none",
    attributes: int = 0,
    last_offset: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    records_told: int | None = None,
    epoch: int = 7,
) -> bytes:
    base_timestamp = records[0].timestamp if records else -1
    last = last_offset if last_offset is not None else max((r.offset for r in records), default=base_offset)
    latest = max_timestamp if max_timestamp is not None else max((r.timestamp for r in records), default=-1)
    number, pack = PACK[codec]
    payload = pack(b"".join(body(record, base_offset, base_timestamp) for record in records))
    checked = (
        struct.pack(
            ">hiqqqhii",
            attributes | number,
            last - base_offset,
            base_timestamp,
            latest,
            producer_id,
            -1,
            -1,
            len(records) if records_told is None else records_told,
        )
        + payload
    )
    inner = struct.pack(">ibI", epoch, 2, crc32c(checked)) + checked
    return struct.pack(">qi", base_offset, len(inner)) + inner
