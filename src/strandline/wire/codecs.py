"""Kafka's compression codecs, into a buffer of ours: a batch cannot unpack to more than we have room for."""

import cramjam
import numpy as np
from numpy.typing import NDArray

from strandline.errors import CorruptBatch

Bytes = NDArray[np.uint8]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
STREAMS = {GZIP: cramjam.gzip, LZ4: cramjam.lz4, ZSTD: cramjam.zstd}
NO_ROOM = "failed to write whole buffer"

# Java's snappy library puts raw blocks, each behind its length, behind this header; others write one raw block.
XERIAL = b"\x82SNAPPY\x00"
XERIAL_HEADER = 16
BLOCK_LENGTH = 4


class NoRoom(Exception):
    """The buffer is too small for what comes out; try again with a larger one."""


def unpack(codec: int, packed: Bytes, room: Bytes) -> int:
    """Unpack into `room`; how many bytes came out."""
    if codec == NONE:
        return _put(packed, room)
    if codec == SNAPPY:
        return _unpack_snappy(packed, room)
    stream = STREAMS.get(codec)
    if stream is None:
        raise CorruptBatch(f"codec {codec} does not exist")
    try:
        return int(stream.decompress_into(packed.data, room.data))
    except cramjam.DecompressionError as error:
        if NO_ROOM in str(error):
            raise NoRoom from None
        raise CorruptBatch(f"cannot be unpacked: {error}") from None


def _put(block: Bytes, room: Bytes) -> int:
    if len(block) > len(room):
        raise NoRoom
    room[: len(block)] = block
    return len(block)


def _unpack_snappy(packed: Bytes, room: Bytes) -> int:
    if packed[: len(XERIAL)].tobytes() != XERIAL:
        return _unpack_block(packed, room)
    at, out = XERIAL_HEADER, 0
    while at < len(packed):
        length = int.from_bytes(packed[at : at + BLOCK_LENGTH].tobytes(), "big")
        at += BLOCK_LENGTH
        if length > len(packed) - at:
            raise CorruptBatch("cannot be unpacked: a block ends beyond the batch")
        out += _unpack_block(packed[at : at + length], room[out:])
        at += length
    return out


def _unpack_block(packed: Bytes, room: Bytes) -> int:
    try:
        if int(cramjam.snappy.decompress_raw_len(packed.data)) > len(room):
            raise NoRoom
        return int(cramjam.snappy.decompress_raw_into(packed.data, room.data))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"cannot be unpacked: {error}") from None
