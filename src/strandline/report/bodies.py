"""Bodies as values to compare: JSON, lines of JSON, forms, text or bytes, by their content type and by their looks.

What is packed is unpacked within a bound. A body of which only the first part is there is `Cut`.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import cramjam

from strandline.errors import MalformedBody
from strandline.json_decode import MalformedJson, decode
from strandline.report.exchange import Message
from strandline.wire.body import CHUNK, GZIP_WINDOW, ZLIB_WINDOW, decode_chunked, uncoded

MAX_BODY = 4 << 20
"""How large a body may become when it is unpacked."""
MAX_FIELDS = 10_000
CRAMJAM = {"zstd": cramjam.zstd, "br": cramjam.brotli}
WINDOWS = {"gzip": GZIP_WINDOW, "x-gzip": GZIP_WINDOW, "deflate": ZLIB_WINDOW}
JSON_TYPE = re.compile(r"[\w.+-]+/(?:[\w.+-]+\+)?json")
LINES_TYPE = re.compile(r"[\w.+-]+/(?:x-)?(?:ndjson|jsonl|jsonlines|json-seq)")
FORM_TYPE = "application/x-www-form-urlencoded"
TEXT_TYPE = re.compile(r"text/.*|[\w.+-]+/(?:[\w.+-]+\+)?(?:xml|javascript|yaml)")


@dataclass(frozen=True, slots=True)
class Document:
    """A body with parts: JSON, a list of JSON documents, or the fields of a form."""

    value: Any


@dataclass(frozen=True, slots=True)
class Text:
    """A body of lines."""

    text: str


@dataclass(frozen=True, slots=True)
class Binary:
    """Any other body."""

    content: bytes

    def __str__(self) -> str:
        return f"{len(self.content):,} bytes, sha256 {sha256(self.content).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A body of which the first part is there."""

    begin: bytes
    """Unpacked."""
    length: int
    """Of the whole, as it was on the wire."""
    sha256: str | None
    """Of the whole, as it was on the wire."""
    is_plain: bool
    """Whether equal content has equal bytes on the wire: neither chunks nor packing."""

    def __str__(self) -> str:
        return f"{self.length:,} bytes, sha256 {(self.sha256 or 'unknown')[:16]}"


Body = Document | Text | Binary | Cut


def read_bodies(
    source: Message, source_headers: Mapping[str, str], target: Message, target_headers: Mapping[str, str]
) -> tuple[Body, Body]:
    """Both bodies, with the headers of each by their names in small letters. Where one is cut, both are `Cut`."""
    held = source.held(), target.held()
    is_cut = len(held[0]) < source.length or len(held[1]) < target.length
    return (
        _read(source, held[0], source_headers, is_cut=is_cut),
        _read(target, held[1], target_headers, is_cut=is_cut),
    )


def _read(message: Message, body: bytes, headers: Mapping[str, str], *, is_cut: bool) -> Body:
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    coding = headers.get("content-encoding", "").strip().lower()
    if coding == "identity":
        coding = ""
    if is_cut:
        digest = message.sha256 if len(body) < message.length else sha256(body).hexdigest()
        begin = _unpacked_begin(coding, _chunked_begin(body) if is_chunked else body)
        return Cut(begin, message.length, digest, is_plain=not is_chunked and not coding)
    try:
        content = decode_chunked(body) if is_chunked else body
        content = _unpacked(coding, content) if coding else content
    except MalformedBody:
        return Binary(body)
    return _parsed(content, headers.get("content-type", "").partition(";")[0].strip().lower())


def _parsed(content: bytes, type_: str) -> Body:
    try:
        if JSON_TYPE.fullmatch(type_) or (not LINES_TYPE.fullmatch(type_) and content[:1] in {b"{", b"["}):
            return Document(decode(content))
        if LINES_TYPE.fullmatch(type_):
            return Document([decode(line) for line in content.split(b"\n") if line.strip(b"\r\x1e ")])
    except MalformedJson:
        documents = _lines(content)
        if documents is not None:
            return Document(documents)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Text(content.decode("latin-1")) if TEXT_TYPE.fullmatch(type_) else Binary(content)
    if type_ == FORM_TYPE and text.count("&") < MAX_FIELDS:
        return Document(_form(text))
    return Binary(content) if "\0" in text else Text(text)


def _lines(content: bytes) -> list[Any] | None:
    """Documents of JSON, one a line, whatever the content type calls them."""
    lines = [line for line in content.split(b"\n") if line.strip()]
    if len(lines) < 2:
        return None
    try:
        return [decode(line) for line in lines]
    except MalformedJson:
        return None


def _form(text: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS):
        fields.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def _unpacked(coding: str, body: bytes) -> bytes:
    if coding not in CRAMJAM:
        return uncoded(coding, body, limit=MAX_BODY)
    room = bytearray(MAX_BODY)
    try:
        return bytes(room[: int(CRAMJAM[coding].decompress_into(body, room))])
    except cramjam.DecompressionError as error:
        raise MalformedBody(f"cannot be unpacked: {error}") from None


def _unpacked_begin(coding: str, body: bytes) -> bytes:
    """What can be had of the first part of a packed body."""
    if coding not in WINDOWS:
        return b"" if coding else body
    try:
        return zlib.decompressobj(wbits=WINDOWS[coding]).decompress(body, MAX_BODY)
    except zlib.error:
        return b""


def _chunked_begin(body: bytes) -> bytes:
    """The content of as many chunks as there are, the last of them perhaps in part."""
    parts, at = [], 0
    while (size := CHUNK.match(body, at)) is not None and int(size[1], 16):
        at, length = size.end(), int(size[1], 16)
        parts.append(body[at : at + length])
        at += length + 2
    return b"".join(parts)
