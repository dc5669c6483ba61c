"""Frames of Kafka's protocol: what the head of a request says, and whole requests and answers from and to bytes.

A frame is its size in four bytes, a header, and a body. How header and body look depends on the API and its version.
"""

import struct
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType
from kio.static.primitive import i32

from strandline.errors import MalformedFrame
from strandline.wire.vetted import NO_LIMIT, uvarint, vetted

SIZE: Final = struct.Struct(">i")
HEAD: Final = struct.Struct(">ihhih")
ANSWER_HEAD: Final = struct.Struct(">ii")
CORRELATION_AT: Final = 8
ANSWER_CORRELATION_AT: Final = 4
PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18
# Of a client, a group or a transaction; no client sends longer ones in good faith.
LONGEST_NAME: Final = 8192
MOST_TAGS: Final = 64
# In all lists of a request together: topics, partitions, groups. Reading so many takes a fraction of a second.
MOST_ITEMS: Final = 100_000
# More than there are versions of APIs, and not as many as strangers can name.
MOST_REMEMBERED: Final = 2048


class Head(NamedTuple):
    """How a request begins. A tuple, since one is made for every request that passes: it takes 0.6 of the time."""

    size: int
    """Of the frame, without the four bytes of the size itself."""
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    """Where the body begins in the frame."""

    @property
    def frame(self) -> int:
        """Bytes of the whole frame."""
        return self.size + SIZE.size

    @property
    def name(self) -> str:
        """The API's name."""
        return api_name(self.api_key)


def api_name(api_key: int) -> str:
    """What people call an API."""
    return api_key_map.get(api_key, f"api_{api_key}")


@lru_cache(MOST_REMEMBERED)
def versions_known(api_key: int) -> range:
    """The versions of an API that can be read here; none for an API that is not known."""
    name = api_key_map.get(api_key)
    if name is None:
        return range(0)
    known = [version for version, kinds in schema_name_map[name].items() if EntityType.request in kinds]
    return range(min(known), max(known) + 1)


@cache
def request_type(api_key: int, version: int) -> Any:
    """The type of a request."""
    return load_request_schema(api_key, version)


@cache
def answer_type(api_key: int, version: int) -> Any:
    """The type of the answer to a request."""
    return load_response_schema(api_key, version)


@lru_cache(MOST_REMEMBERED)
def _has_tags(api_key: int, version: int) -> bool:
    """Whether tagged fields stand behind the client's id in the head of a request."""
    return version in versions_known(api_key) and request_type(api_key, version).__flexible__


def read_head(frame: memoryview) -> Head | None:
    """The head of the request that begins here; None while not all of it has come."""
    there = len(frame)
    if there < HEAD.size:
        return None
    size, api_key, version, correlation_id, name_size = HEAD.unpack_from(frame)
    if size < HEAD.size - SIZE.size:
        raise MalformedFrame(f"a request of {size} bytes: no client of Kafka speaks here")
    whole = size + SIZE.size
    at = HEAD.size + max(name_size, 0)
    if name_size > LONGEST_NAME or at > whole:
        raise MalformedFrame(f"a client id of {name_size} bytes")
    if there < min(at + 1, whole):
        return None
    client_id = None if name_size < 0 else str(frame[HEAD.size : at], "utf-8", "replace")
    if _has_tags(api_key, version):
        if at < whole and not frame[at]:
            return Head(size, api_key, version, correlation_id, client_id, at + 1)
        longest = min(whole, at + LONGEST_NAME)
        end = _after_tags(frame[:longest], at)
        if end is None:
            if there >= longest:
                raise MalformedFrame("a header that does not end")
            return None
        at = end
    return Head(size, api_key, version, correlation_id, client_id, at)


def decode_request(frame: memoryview, head: Head) -> Any:
    """The request in a whole frame."""
    request, _ = _read(request_type(head.api_key, head.version), frame, head.body, head.name, MOST_ITEMS)
    return request


def decode_answer(frame: memoryview, api_key: int, version: int) -> Any:
    """The answer in a whole frame."""
    kind = answer_type(api_key, version)
    _, body = _read(kind.__header_schema__, frame, SIZE.size, api_name(api_key))
    answer, _ = _read(kind, frame, body, api_name(api_key))
    return answer


def decode_body(body: memoryview, api_key: int, version: int) -> Any:
    """The answer in what stands behind the header of one."""
    answer, _ = _read(answer_type(api_key, version), body, 0, api_name(api_key))
    return answer


def encode_request(request: Any, correlation_id: int, client_id: str | None) -> bytes:
    """A request as a frame."""
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=i32(correlation_id),
        client_id=client_id,
    )
    return _frame(header, request)


def encode_answer(answer: Any, correlation_id: int) -> bytes:
    """An answer as a frame."""
    return _frame(answer.__header_schema__(correlation_id=i32(correlation_id)), answer)


def first_string(frame: memoryview, head: Head) -> tuple[str | None, int] | None:
    """The string that stands first in a request, and where it ends; None while not all of it has come.

    It is what decides where many requests go: the group, or the transactional id.
    """
    frame = frame[: head.frame]
    found = _string(frame, head)
    if found is None and len(frame) == head.frame:
        raise MalformedFrame(f"{head.name} ends within the name that it begins with")
    return found


def _string(frame: memoryview, head: Head) -> tuple[str | None, int] | None:
    at = head.body
    if request_type(head.api_key, head.version).__flexible__:
        length = uvarint(frame, at)
        if length is None:
            return None
        size, at = length[0] - 1, length[1]
    else:
        if len(frame) < at + 2:
            return None
        (size,) = struct.unpack_from(">h", frame, at)
        at += 2
    if size > LONGEST_NAME:
        raise MalformedFrame(f"{head.name} begins with a name of {size} bytes")
    end = at + max(size, 0)
    if len(frame) < end:
        return None
    return None if size < 0 else bytes(frame[at:end]).decode(errors="replace"), end


def _after_tags(frame: memoryview, at: int) -> int | None:
    found = uvarint(frame, at)
    if found is None:
        return None
    count, at = found
    if count > MOST_TAGS:
        raise MalformedFrame(f"{count} tagged fields in a header")
    for _ in range(count):
        tag = uvarint(frame, at)
        length = None if tag is None else uvarint(frame, tag[1])
        if length is None or len(frame) < length[0] + length[1]:
            return None
        at = length[0] + length[1]
    return at


def _read(kind: Any, frame: memoryview, at: int, name: str, most_items: int = NO_LIMIT) -> tuple[Any, int]:
    """An entity that begins here, and where it ends."""
    try:
        known, end = vetted(kind, frame, at, most_items)
        value, _ = entity_reader(kind)(known, 0)
    except (SerialError, ValueError, OverflowError) as error:
        raise MalformedFrame(f"{name} {kind.__version__} cannot be read: {error}") from error
    return value, end


def _frame(header: Any, body: Any) -> bytes:
    out = BytesIO()
    out.write(SIZE.pack(0))
    entity_writer(type(header))(out, header)
    entity_writer(type(body))(out, body)
    frame = out.getbuffer()
    SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
    return bytes(frame)
