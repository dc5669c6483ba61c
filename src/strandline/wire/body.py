"""The body of an HTTP/1 message: its chunks and its content coding undone, within a bound.

Strict: what is not exactly what the head says is refused, for an edit of something else would send something else. Only
`chunks_undone` is not: it is for those who look and send nothing.
"""

import re
import zlib
from typing import Final

from strandline.errors import MalformedBody
from strandline.wire.head import Head

CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
TRAILER: Final = re.compile(rb"[^\x00-\x20\x7f:]+:[^\r\n]*\r\n")
GZIP_WINDOW, ZLIB_WINDOW, RAW_WINDOW = 31, 15, -15
WINDOWS: Final = {"gzip": [GZIP_WINDOW], "x-gzip": [GZIP_WINDOW], "deflate": [ZLIB_WINDOW, RAW_WINDOW]}


def decode_chunked(body: bytes) -> bytes:
    """The content of a chunked body. It is never larger than the body; trailers are read and dropped."""
    parts, at = [], 0
    while True:
        size = CHUNK.match(body, at)
        if size is None:
            raise MalformedBody(f"no chunk begins at byte {at}")
        at, length = size.end(), int(size[1], 16)
        if not length:
            break
        if body[at + length : at + length + 2] != b"\r\n":
            raise MalformedBody(f"the chunk at byte {at} does not end where it should")
        parts.append(body[at : at + length])
        at += length + 2
    while trailer := TRAILER.match(body, at):
        at = trailer.end()
    if body[at:] != b"\r\n":
        raise MalformedBody(f"the chunks do not end at byte {at}")
    return b"".join(parts)


def chunks_undone(body: bytes) -> bytes:
    """The content of a chunked body as far as it can be told: one may be cut off, and what is no chunk ends it."""
    parts, at = [], 0
    while (size := CHUNK.match(body, at)) is not None and (length := int(size[1], 16)):
        parts.append(body[size.end() : size.end() + length])
        at = size.end() + length + 2
    return b"".join(parts)


def unchunked(head: Head, body: bytes) -> bytes:
    """The body without the framing of its transfer."""
    codings = [coding.strip().lower() for value in head.all("Transfer-Encoding") for coding in value.split(",")]
    if not codings:
        return body
    if codings != ["chunked"]:
        raise MalformedBody(f"cannot undo the transfer coding '{', '.join(codings)}'")
    return decode_chunked(body)


def unpacked(head: Head, body: bytes, *, limit: int) -> bytes:
    """The content of a body without chunks, unpacked to at most so many bytes."""
    return uncoded(", ".join(head.all("Content-Encoding")).strip().lower(), body, limit=limit)


def uncoded(coding: str, body: bytes, *, limit: int) -> bytes:
    """The content of a body of this coding, gzip or deflate, unpacked to at most so many bytes."""
    if coding in {"", "identity"} or not body:
        return body
    if coding not in WINDOWS:
        raise MalformedBody(f"cannot undo the content coding '{coding}'")
    *others, last = WINDOWS[coding]
    # A body of deflate has a wrapper by the standard, and with some clients has none.
    for window in others:
        try:
            return _inflate(body, window, limit)
        except zlib.error:
            pass
    try:
        return _inflate(body, last, limit)
    except zlib.error:
        raise MalformedBody(f"is not {coding}") from None


def packed(content: bytes) -> bytes:
    """The content as gzip, the same bytes each time."""
    packer = zlib.compressobj(wbits=GZIP_WINDOW)
    return packer.compress(content) + packer.flush()


def _inflate(body: bytes, window: int, limit: int) -> bytes:
    parts, room = [], limit
    while body:
        inflater = zlib.decompressobj(wbits=window)
        part = inflater.decompress(body, room + 1)
        if len(part) > room:
            raise MalformedBody(f"unpacks to more than {limit:,} bytes")
        if not inflater.eof:
            raise MalformedBody("is packed and cut off")
        parts.append(part)
        room -= len(part)
        body = inflater.unused_data
    return b"".join(parts)
