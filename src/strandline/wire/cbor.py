"""CBOR (RFC 8949) as AWS' SDKs speak it with Kinesis: plain values, and moments in milliseconds under tag 1.

The reader takes all lengths, definite and not, and refuses with `MalformedBody` what it does not know: other tags,
other simple values, nesting beyond a bound. It never makes room for more than there are bytes.
"""

import struct
from typing import Any, Final

from strandline.errors import MalformedBody

MAX_DEPTH: Final = 16
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
INDEFINITE: Final = 31
BREAK: Final = 0xFF
MOMENT: Final = 1
"""The tag of a moment."""
LENGTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
SIMPLE_VALUES: Final = {20: False, 21: True, 22: None, 23: None}
FLOATS: Final = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}


class Timestamp:
    """A time, in milliseconds since 1970."""

    __slots__ = ("ms",)

    def __init__(self, ms: int) -> None:
        self.ms = ms


def decode(data: bytes) -> Any:
    """The one value that the bytes are. A moment comes as its number, in seconds."""
    try:
        value, end = _read(data, 0, 0)
    except (IndexError, struct.error):
        raise MalformedBody("CBOR that is cut off") from None
    except UnicodeDecodeError:
        raise MalformedBody("CBOR whose text is not UTF-8") from None
    if end != len(data):
        raise MalformedBody(f"CBOR with {len(data) - end} bytes too many")
    return value


def encode(value: object) -> bytes:
    """A value as CBOR."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise MalformedBody(f"CBOR nested deeper than {MAX_DEPTH}")
    kind, low = data[at] >> 5, data[at] & 31
    if kind == SIMPLE:
        return _read_simple(data, at + 1, low)
    size, at = _read_size(data, at + 1, low)
    if kind in {UNSIGNED, NEGATIVE}:
        number = _definite(size)
        return (number if kind == UNSIGNED else -1 - number), at
    if kind in {BYTES, TEXT}:
        raw, at = _read_string(data, at, kind, size)
        return (raw.decode() if kind == TEXT else raw), at
    if kind in {ARRAY, MAP}:
        return _read_array(data, at, size, depth) if kind == ARRAY else _read_map(data, at, size, depth)
    if size != MOMENT:
        raise MalformedBody(f"CBOR with a tag that is not known: {size}")
    moment, at = _read(data, at, depth + 1)
    if isinstance(moment, bool) or not isinstance(moment, int | float):
        raise MalformedBody("CBOR with a moment that is no number")
    return moment / 1000, at


def _read_size(data: bytes, at: int, low: int) -> tuple[int | None, int]:
    """What the first byte tells: a number or a length, None where the end is marked instead."""
    if low < 24:
        return low, at
    if low == INDEFINITE:
        return None, at
    length = LENGTHS.get(low)
    if length is None or at + length > len(data):
        raise MalformedBody("CBOR that is cut off" if length else "CBOR with a length that cannot be read")
    return int.from_bytes(data[at : at + length], "big"), at + length


def _definite(size: int | None) -> int:
    if size is None:
        raise MalformedBody("CBOR with a number that cannot be read")
    return size


def _read_string(data: bytes, at: int, kind: int, size: int | None) -> tuple[bytes, int]:
    if size is not None:
        if size > len(data) - at:
            raise MalformedBody("CBOR that is cut off")
        return data[at : at + size], at + size
    parts = []
    while data[at] != BREAK:
        if data[at] >> 5 != kind:
            raise MalformedBody("CBOR with a piece of a string that is none")
        size, at = _read_size(data, at + 1, data[at] & 31)
        part, at = _read_string(data, at, kind, _definite(size))
        parts.append(part)
    return b"".join(parts), at + 1


def _read_array(data: bytes, at: int, size: int | None, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    while data[at] != BREAK if size is None else len(items) < size:
        item, at = _read(data, at, depth + 1)
        items.append(item)
    return items, at + (size is None)


def _read_map(data: bytes, at: int, size: int | None, depth: int) -> tuple[dict[str, Any], int]:
    pairs: dict[str, Any] = {}
    read = 0
    while data[at] != BREAK if size is None else read < size:
        key, at = _read(data, at, depth + 1)
        if not isinstance(key, str):
            raise MalformedBody("CBOR with a key that is no text")
        pairs[key], at = _read(data, at, depth + 1)
        read += 1
    return pairs, at + (size is None)


def _read_simple(data: bytes, at: int, low: int) -> tuple[bool | float | None, int]:
    if low in SIMPLE_VALUES:
        return SIMPLE_VALUES[low], at
    if low not in FLOATS:
        raise MalformedBody("CBOR with a value that is not known")
    form, length = FLOATS[low]
    return struct.unpack_from(form, data, at)[0], at + length


def _write(value: object, parts: list[bytes]) -> None:
    match value:
        case None:
            parts.append(b"\xf6")
        case bool():
            parts.append(b"\xf5" if value else b"\xf4")
        case int():
            parts.append(_head(UNSIGNED, value) if value >= 0 else _head(NEGATIVE, -1 - value))
        case float():
            parts.append(b"\xfb" + struct.pack(">d", value))
        case str():
            raw = value.encode()
            parts += (_head(TEXT, len(raw)), raw)
        case bytes():
            parts += (_head(BYTES, len(value)), value)
        case list():
            parts.append(_head(ARRAY, len(value)))
            for item in value:
                _write(item, parts)
        case dict():
            parts.append(_head(MAP, len(value)))
            for key, item in value.items():
                _write(key, parts)
                _write(item, parts)
        case Timestamp():
            parts.append(_head(TAG, MOMENT))
            _write(value.ms, parts)
        case _:
            raise TypeError(f"no CBOR for {type(value).__name__}")


def _head(kind: int, size: int) -> bytes:
    if size < 24:
        return bytes([kind << 5 | size])
    for low, length in LENGTHS.items():
        if size < 1 << 8 * length:
            return bytes([kind << 5 | low]) + size.to_bytes(length, "big")
    raise ValueError("CBOR has no numbers beyond 64 bits")
