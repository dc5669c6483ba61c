"""Rows of changes to a Kinesis stream: in order per key, none left out, none acknowledged before it is safe.

`send` returns when every record of its batches is accepted by the stream, or is safe in the dead-letter place because
the stream will never take it. Otherwise it raises, and nothing may be acknowledged. A record may arrive twice, always
with the same id; the first arrivals of a key are in the order of their ids.
"""

import asyncio
import logging
import random
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

import msgspec
import pyarrow as pa
import uvloop

from strandline.cdc.deadletter import DeadLetterPlace
from strandline.cdc.failures import BACKOFF, REGION, Course, Problem, answered
from strandline.cdc.limits import SendOptions, ShardRate
from strandline.cdc.outgoing import Record
from strandline.cdc.sending import Failures, Fence, Sending, Sent
from strandline.core.shards import HashRange, even_ranges
from strandline.errors import StreamRefused
from strandline.json_decode import MalformedJson, decode

DESCRIBE_ATTEMPTS = 5
MAY_NOT = frozenset({"AccessDenied", "AccessDeniedException"})
NOT_KINESIS = Problem("an answer that is not of Kinesis", "", Course.STOP, REGION)


log = logging.getLogger(__name__)


class _Entry(msgspec.Struct, rename="pascal", gc=False):
    """A record in a request; msgspec writes bytes as base64."""

    data: bytes
    partition_key: str


class _Result(msgspec.Struct, rename="pascal", gc=False):
    error_code: str | None = None
    error_message: str | None = None


class _Results(msgspec.Struct, rename="pascal"):
    records: list[_Result]


class _Summary(msgspec.Struct, rename="pascal"):
    stream_status: str
    open_shard_count: int
    # Streams of before there was a choice do not tell it.
    max_record: int = msgspec.field(name="MaxRecordSizeInKiB", default=1024)


class _Description(msgspec.Struct, rename="pascal"):
    stream_description_summary: _Summary


class _Range(msgspec.Struct, rename="pascal"):
    starting_hash_key: str
    ending_hash_key: str


class _Sequence(msgspec.Struct, rename="pascal"):
    # A shard that was split or merged has one.
    ending_sequence_number: str | None = None


class _Shard(msgspec.Struct, rename="pascal"):
    hash_key_range: _Range
    sequence_number_range: _Sequence


class _Shards(msgspec.Struct, rename="pascal"):
    shards: list[_Shard]
    next_token: str | None = None


ENCODER = msgspec.json.Encoder()
RESULTS = msgspec.json.Decoder(_Results)
DESCRIPTION = msgspec.json.Decoder(_Description)
SHARDS = msgspec.json.Decoder(_Shards)


class Stream(NamedTuple):
    """What a stream says of itself."""

    status: str
    shards: int
    max_record_bytes: int


class Sender:
    """Sends to one stream, for one caller at a time; connections stay open in between. Close it."""

    def __init__(
        self,
        stream: str,
        *,
        dead_letters: DeadLetterPlace | None = None,
        options: SendOptions | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        """`stream` is a name or an ARN. Region, endpoint and credentials are found as the AWS tools find them."""
        self._options = options or SendOptions()
        # Not before a sender is made: Spark looks at the sink in several processes that send nothing.
        from strandline.cdc.api import Api  # noqa: PLC0415

        self._api = Api(region=region, endpoint_url=endpoint_url, timeout=self._options.timeout)
        self._stream = stream
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._dead_letters = dead_letters
        self._rate: ShardRate | None = None
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)

    def send(self, batches: Iterable[pa.RecordBatch], *, leadership: int | None, fence: Fence) -> Sent:
        """Send all rows: columns `partition_key`, `event`, `lsn`, `ordinal`. Batches are asked for in a thread."""
        if self._rate is None and self._options.shards is not None:
            ranges = self._runner.run(self._ranges()) or even_ranges(self._options.shards)
            self._rate = ShardRate(ranges, shards=self._options.shards, senders=self._options.senders)
        sending = Sending(
            partial(self._put, fence),
            self._dead_letters,
            self._options,
            self._rate,
            stream=self._stream,
            leadership=leadership,
            fence=fence,
        )
        return self._runner.run(sending.run(batches))

    async def _put(self, fence: Fence, records: list[Record]) -> Failures | Problem:
        entries = [_Entry(record.data, record.key) for record in records]
        body = ENCODER.encode({**self._named, "Records": entries})
        answer = await self._api.call("PutRecords", body, fence)
        if isinstance(answer, Problem):
            return answer
        try:
            results = decode(answer, RESULTS).records
        except MalformedJson:
            results = []
        if len(results) != len(records):
            return NOT_KINESIS
        return [
            (record, answered(result.error_code, result.error_message or "", 200))
            for record, result in zip(records, results, strict=True)
            if result.error_code
        ]

    def describe(self) -> Stream | None:
        """Ask the stream, a few times if need be; raises StreamRefused where somebody has to mend something.

        None where it cannot be reached just now, or where these credentials may send and not ask
        (kinesis:DescribeStreamSummary).
        """
        answer = self._runner.run(self._asked("DescribeStreamSummary", self._named))
        if answer is None:
            return None
        try:
            summary = decode(answer, DESCRIPTION).stream_description_summary
        except MalformedJson:
            raise StreamRefused(self._stream, str(NOT_KINESIS), NOT_KINESIS.advice) from None
        return Stream(summary.stream_status, summary.open_shard_count, summary.max_record << 10)

    async def _ranges(self) -> list[HashRange]:
        """The hash keys of the shards that are open; none where the stream cannot be asked (kinesis:ListShards)."""
        found: list[HashRange] = []
        asked: dict[str, str] = self._named
        while (answer := await self._asked("ListShards", asked)) is not None:
            try:
                page = decode(answer, SHARDS)
            except MalformedJson:
                raise StreamRefused(self._stream, str(NOT_KINESIS), NOT_KINESIS.advice) from None
            found += [
                HashRange(int(shard.hash_key_range.starting_hash_key), int(shard.hash_key_range.ending_hash_key))
                for shard in page.shards
                if shard.sequence_number_range.ending_sequence_number is None
            ]
            if page.next_token is None:
                return sorted(found, key=lambda each: each.first)
            asked = {"NextToken": page.next_token}
        return []

    async def _asked(self, action: str, body: Mapping[str, str]) -> bytes | None:
        """The answer to a question about the stream; None as `describe` has it."""
        attempt = 1
        while isinstance(answer := await self._api.call(action, ENCODER.encode(body)), Problem):
            if answer.code in MAY_NOT:
                return None
            backoff = BACKOFF.get(answer.course)
            if backoff is None:
                raise StreamRefused(self._stream, str(answer), answer.advice or REGION)
            if attempt == DESCRIBE_ATTEMPTS:
                log.warning("stream '%s' cannot be asked what it is like: %s", self._stream, answer)
                return None
            await asyncio.sleep(backoff.delay(attempt, random.random()) / 1e9)  # noqa: S311  (no secret)
            attempt += 1
        return answer

    def close(self) -> None:
        """Close the connections and the dead-letter place."""
        self._runner.get_loop().call_soon(self._api.close)
        self._runner.run(asyncio.sleep(0))
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
