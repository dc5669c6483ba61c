"""Record batches of message format v2: their headers, one after the other, each checked before it is believed."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from strandline.errors import CorruptBatch

HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_ENDS_AT = 12
CHECKED_FROM = 21
MAGIC_AT = 16
FORMAT = 2

CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class Batch(NamedTuple):
    """One batch: its header, and where its records lie, packed, in the bytes that it was found in."""

    base_offset: int
    last_offset: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    records: int
    epoch: int
    """The leader's, when it was written."""
    start: int
    end: int

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_BITS

    @property
    def is_stamped_by_the_broker(self) -> bool:
        """Whether every record has the batch's own time (LogAppendTime)."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction's marker instead of records: takes offsets, is never delivered."""
        return bool(self.attributes & CONTROL)


def batches(
    data: NDArray[np.uint8], *, check: bool = True, corrupt: list[CorruptBatch] | None = None
) -> Iterator[Batch]:
    """The whole batches in what a fetch brought. A broker may cut off the last one; it comes whole the next time.

    With a list for the corrupt ones, those go there and are passed over, as far as their length can be believed.
    """
    view = data.data
    at = 0
    while len(view) - at >= LENGTH_ENDS_AT:
        base_offset, length = struct.unpack_from(">qi", view, at)
        end = at + LENGTH_ENDS_AT + length
        if length < HEADER.size - LENGTH_ENDS_AT:
            raise CorruptBatch(f"a length of {length} bytes", base_offset)
        if end > len(view):
            return
        try:
            yield _batch(view, at, end, check)
        except CorruptBatch as error:
            if corrupt is None:
                raise
            corrupt.append(error)
        at = end


def _batch(view: memoryview, at: int, end: int, check: bool) -> Batch:
    (
        base_offset, _, epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, _, _, records,
    ) = HEADER.unpack_from(view, at)  # fmt: skip
    # What a broker itself goes by, also where the rest cannot be believed.
    behind = base_offset + max(0, last_offset_delta) + 1
    if magic != FORMAT:
        raise CorruptBatch(
            f"message format {magic}; only format {FORMAT} is read (Kafka 0.11 and later)", base_offset, behind
        )
    if check and crc32c(view[at + CHECKED_FROM : end]) != crc:
        raise CorruptBatch("its checksum differs", base_offset, behind)
    if last_offset_delta < 0 or records < 0:
        raise CorruptBatch(f"{records} records up to its offset {last_offset_delta}", base_offset, behind)
    return Batch(
        base_offset,
        base_offset + last_offset_delta,
        attributes,
        base_timestamp,
        max_timestamp,
        producer_id,
        records,
        epoch,
        at + HEADER.size,
        end,
    )
