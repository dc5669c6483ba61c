"""A record as the WebSocket frame that all its subscribers share, but for the number that each of them counts itself.

`seq` stands first, in a field of fixed width that is padded with spaces, as JSON allows before a number. So a record is
encoded once, and for each client only the digits are written, at places that are known.
"""

import struct
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from strandline.json_decode import MalformedJson, decode
from strandline.wire.codecs import Bytes
from strandline.wire.kernel import kernel

HEAD = b'{"seq":'
SEQ_WIDTH = 12
BLANK_SEQ = b" " * SEQ_WIDTH
FINAL_TEXT = 0x81
SHORT, MEDIUM = 125, 0xFFFF
# What is numbered at once, for as many clients as fit in here.
NUMBERED_BYTES = 4 << 20

TYPE = b'"type":'
BEHIND_TYPE = b',"priority":'
REPLAYED = b'"replay:message"'

# Who reads an envelope has this much room less than we have: it is within it, and they may be deep within a program.
ROOM = 500

_text = msgspec.json.Encoder().encode


def data_of(value: bytes | None) -> bytes:
    """A record's value as the last members of its envelope: JSON as it is once it has been read, else as base64.

    So is JSON that is nested deeper than every reader of ours can go.
    """
    if value is None:
        return b'"data":null'
    try:
        decode(value)
        if value.count(b"[") + value.count(b"{") > ROOM:
            decode(b"[" * ROOM + value + b"]" * ROOM)
    except MalformedJson:
        return b'"encoding":"base64","data":"' + b64encode(value) + b'"'
    return b'"data":' + value


@dataclass(frozen=True, slots=True)
class Stated:
    """What an envelope says of its record besides the data."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    channel: str
    type: str
    priority: str


def frame_of(stated: Stated, data: bytes) -> bytes:
    """The frame of a record, with room for the number."""
    return frame(
        b'%b%b,"ts":%d,"type":%b,"priority":%b,"channel":%b,"topic":%b,"partition":%d,"offset":%d,%b}'
        % (
            HEAD,
            BLANK_SEQ,
            stated.timestamp,
            _text(stated.type),
            _text(stated.priority),
            _text(stated.channel),
            _text(stated.topic),
            stated.partition,
            stated.offset,
            data,
        )
    )


def replayed(live: bytes) -> bytes:
    """The frame of the same record where it comes by a replay."""
    payload = live[_header_size(len(live)) :]
    # Before the type stand numbers only; and no text in JSON has a quotation mark without a backslash.
    begin = payload.index(TYPE) + len(TYPE)
    return frame(payload[:begin] + REPLAYED + payload[payload.index(BEHIND_TYPE, begin) :])


def frame(payload: bytes) -> bytes:
    """A text as one WebSocket frame of a server."""
    size = len(payload)
    if size <= SHORT:
        return struct.pack("!BB", FINAL_TEXT, size) + payload
    if size <= MEDIUM:
        return struct.pack("!BBH", FINAL_TEXT, 126, size) + payload
    return struct.pack("!BBQ", FINAL_TEXT, 127, size) + payload


def _header_size(frame_size: int) -> int:
    if frame_size <= SHORT + 2:
        return 2
    return 4 if frame_size <= MEDIUM + 4 else 10


def numbered(frames: Sequence[bytes], firsts: Sequence[int]) -> Iterator[bytes]:
    """The frames one behind the other, for each client with its own numbers from its first one on."""
    data = np.frombuffer(bytearray().join(frames), dtype=np.uint8)
    slots = np.empty(len(frames), dtype=np.int64)
    at = 0
    for place, one in enumerate(frames):
        slots[place] = at + _header_size(len(one)) + len(HEAD)
        at += len(one)
    group = max(1, NUMBERED_BYTES // len(data))
    for low in range(0, len(firsts), group):
        some = np.array(firsts[low : low + group], dtype=np.int64)
        out = np.empty((len(some), len(data)), dtype=np.uint8)
        _number(data, slots, some, out)
        view = out.data.cast("B")
        # A copy each: a client that is slow must not keep what all the others were sent.
        for start in range(0, len(view), len(data)):
            yield bytes(view[start : start + len(data)])


@kernel("void(uint8[::1], int64[::1], int64[::1], uint8[:, ::1])")
def _number(data: Bytes, slots: NDArray[np.int64], firsts: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    for client in range(len(firsts)):
        out[client] = data
        for place in range(len(slots)):
            left = firsts[client] + place
            at = slots[place] + SEQ_WIDTH
            while left > 0:
                at -= 1
                out[client, at] = 48 + left % 10
                left //= 10
