"""The requests of Kinesis' API as values, and what is wrong with one told as Kinesis tells it.

A request comes as JSON with base64 or as CBOR with bytes; either way it becomes one of the types below, whose limits
are those of the API. What does not fit is `Refused` with the code that the real one answers.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from strandline.errors import MalformedBody
from strandline.wire import cbor

JSON: Final = "application/x-amz-json-1.1"
CBOR: Final = "application/x-amz-cbor-1.1"
TARGET: Final = "Kinesis_20131202."

MAX_RECORDS: Final = 500
MAX_REQUEST: Final = 10 << 20
KIB: Final = 1 << 10
MAX_RECORD_KIB: Final = 1024
"""Of a stream for which nothing else was asked; keys count."""

PLACE: Final = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<place>.*)`)?", re.DOTALL)
STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
BOUND: Final = re.compile(r"Expected `(?:str|array|int)`( of length)? (<=|>=) (\d+)")
PATTERN: Final = re.compile(r"Expected `str` matching regex '\^?(.*?)\$?'")
SIGNS: Final = {"<=": "less than or equal to", ">=": "greater than or equal to"}
ENUM: Final = "Invalid enum value"

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[a-zA-Z0-9_.-]+$")]
Arn = Annotated[str, Meta(max_length=2048, pattern=r"^arn:aws.*:kinesis:.*:\d{12}:stream/\S+$")]
Key = Annotated[str, Meta(min_length=1, max_length=256)]
HashKey = Annotated[str, Meta(pattern=r"^(0|([1-9]\d{0,38}))$")]
SequenceNumber = Annotated[str, Meta(pattern=r"^(0|([1-9]\d{0,128}))$")]
Limit = Annotated[int, Meta(ge=1, le=10_000)]
Token = Annotated[str, Meta(min_length=1, max_length=4096)]
Iterator = Annotated[str, Meta(min_length=1, max_length=512)]


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status


class _OfStream(Struct, rename="pascal", kw_only=True):
    """What names a stream: either of the two."""

    stream_name: Name | None = None
    stream_arn: Arn | None = field(name="StreamARN", default=None)

    @property
    def stream(self) -> str:
        """The stream's name."""
        if self.stream_name is not None:
            return self.stream_name
        if self.stream_arn is not None:
            return self.stream_arn.rpartition("/")[2]
        raise Refused("InvalidArgumentException", "Either StreamName or StreamARN must be given.")


class Mode(Struct, rename="pascal"):
    """How a stream's capacity is decided."""

    stream_mode: Literal["PROVISIONED", "ON_DEMAND"]


class CreateStream(Struct, rename="pascal", kw_only=True):
    """A new stream."""

    stream_name: Name
    shard_count: Annotated[int, Meta(ge=1)] | None = None
    stream_mode_details: Mode | None = None
    max_record_kib: Annotated[int, Meta(ge=1024, le=10_240)] = field(name="MaxRecordSizeInKiB", default=MAX_RECORD_KIB)


class DeleteStream(_OfStream):
    """A stream, and all in it, gone."""


class DescribeStream(_OfStream, rename="pascal", kw_only=True):
    """A stream with its shards, page by page."""

    limit: Limit = 100
    exclusive_start_shard_id: Name | None = None


class DescribeStreamSummary(_OfStream):
    """A stream without its shards."""


class ListStreams(Struct, rename="pascal", kw_only=True):
    """Names of streams, page by page."""

    limit: Limit = 100
    exclusive_start_stream_name: Name | None = None
    next_token: Token | None = None


class ListShards(_OfStream, rename="pascal", kw_only=True):
    """Shards of a stream, page by page: the first by the stream's name, each other by its token alone."""

    next_token: Token | None = None
    exclusive_start_shard_id: Name | None = None
    max_results: Limit = 1000


class Entry(Struct, rename="pascal", gc=False):
    """A record to be put. It is kept as it is, by the million: the collector need not look at it."""

    data: bytes
    partition_key: Key
    explicit_hash_key: HashKey | None = None


class PutRecord(_OfStream, rename="pascal", kw_only=True):
    """One record."""

    data: bytes
    partition_key: Key
    explicit_hash_key: HashKey | None = None
    sequence_number_for_ordering: SequenceNumber | None = None


class PutRecords(_OfStream, rename="pascal", kw_only=True):
    """Many records, each taken or not."""

    records: Annotated[list[Entry], Meta(min_length=1, max_length=MAX_RECORDS)]


class GetShardIterator(_OfStream, rename="pascal", kw_only=True):
    """A place in a shard to read from."""

    shard_id: Name
    shard_iterator_type: Literal[
        "AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"
    ]
    starting_sequence_number: SequenceNumber | None = None
    timestamp: float | None = None


class GetRecords(Struct, rename="pascal", kw_only=True):
    """Records from a place on."""

    shard_iterator: Iterator
    limit: Limit = 10_000


Request = TypeVar("Request")


def read(body: bytes, content_type: str, decoder: "msgspec.json.Decoder[Request]") -> Request:
    """The request that a body is."""
    try:
        if content_type == CBOR:
            return msgspec.convert(cbor.decode(body), decoder.type)
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _refused(str(error)) from None
    except (msgspec.DecodeError, MalformedBody, UnicodeDecodeError, RecursionError) as error:
        raise Refused("SerializationException", str(error)) from None


def _refused(told: str) -> Refused:
    """What msgspec found wrong, as Kinesis says it; what is of another type than it should be was never read there."""
    found = PLACE.fullmatch(told)
    problem, place = (told, "") if found is None else (found["problem"], found["place"] or "")
    # `$.Records[0].PartitionKey` is 'records.1.member.partitionKey' there.
    steps = [_camel(name) if name else f"{int(index) + 1}.member" for name, index in STEP.findall(place)]
    if missing := MISSING.match(problem):
        steps.append(_camel(missing[1]))
        return _invalid(f"Value null at '{'.'.join(steps)}'", "Member must not be null")
    at = f"Value at '{'.'.join(steps)}'"
    if bound := BOUND.match(problem):
        what = "length" if bound[1] else "value"
        return _invalid(at, f"Member must have {what} {SIGNS[bound[2]]} {bound[3]}")
    if pattern := PATTERN.match(problem):
        return _invalid(at, f"Member must satisfy regular expression pattern: {pattern[1]}")
    if problem.startswith(ENUM):
        return _invalid(at, "Member must satisfy enum value set")
    return Refused("SerializationException", told)


def check_sizes(sizes: Sequence[int], *, limit: int, is_single: bool = False) -> None:
    """Refuse records, keys included, of which one is beyond its stream's limit, or all are beyond a request's."""
    if max(sizes) > limit:
        position = next(index for index, size in enumerate(sizes, 1) if size > limit)
        place = "data" if is_single else f"records.{position}.member.data"
        raise _invalid(f"Value at '{place}'", f"Member must have length less than or equal to {limit}")
    if sum(sizes) > MAX_REQUEST:
        raise Refused("InvalidArgumentException", f"Records size exceeds {MAX_REQUEST >> 20} MB limit")


def _invalid(at: str, constraint: str) -> Refused:
    return Refused(
        "ValidationException", f"1 validation error detected: {at} failed to satisfy constraint: {constraint}"
    )


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]
