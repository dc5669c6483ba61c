"""The actions of Kinesis' API on the endpoint's streams: a request in, its answer or `Refused` out, no I/O."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from strandline.stack.endpoint.faults import SERVER_ERRORS, SPARED, Chance, Fate, Orders
from strandline.stack.endpoint.streams import ACCOUNT, Counts, Moment, Shard, Stream, Streams
from strandline.units import Nanos
from strandline.wire import kinesis
from strandline.wire.cbor import Timestamp
from strandline.wire.kinesis import Entry, Refused

ON_DEMAND_SHARDS: Final = 4
RETENTION_HOURS: Final = 24
MAX_ANSWER: Final = 10 << 20
"""Of the records that one GetRecords brings."""
MAX_ORDERS: Final = 10_000
NO_FAULTS: Final = Chance((), seed=0)

Body = dict[str, Any] | bytes | None
"""Of an answer: values, JSON that is written already, or nothing."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered, and how."""

    body: Body = None
    fate: Fate = SPARED


class Api:
    """All actions, on all streams."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._chances: dict[str, tuple[Chance, frozenset[str]]] = {}
        self._actions: dict[str, tuple[msgspec.json.Decoder[Any], Callable[[Any, Moment], Body]]] = {
            request.__name__: (msgspec.json.Decoder(request), action)
            for request, action in (
                (kinesis.CreateStream, self._create_stream),
                (kinesis.DeleteStream, self._delete_stream),
                (kinesis.DescribeStream, self._describe_stream),
                (kinesis.DescribeStreamSummary, self._describe_stream_summary),
                (kinesis.ListStreams, self._list_streams),
                (kinesis.ListShards, self._list_shards),
                (kinesis.GetShardIterator, self._get_shard_iterator),
                (kinesis.GetRecords, self._get_records),
            )
        }
        self._put_record = msgspec.json.Decoder(kinesis.PutRecord)
        self._put_records = msgspec.json.Decoder(kinesis.PutRecords)

    def obey(self, orders: Orders, now: Nanos) -> None:
        """Commit these faults from now on."""
        chance = Chance(orders.faults, seed=orders.seed)
        if orders.faults and len(self._chances) >= MAX_ORDERS and orders.stream not in self._chances:
            raise Refused("LimitExceededException", f"faults for more than {MAX_ORDERS:,} streams")
        if orders.faults:
            self._chances[orders.stream] = chance, frozenset(orders.actions)
        else:
            self._chances.pop(orders.stream, None)
        stream = self.streams.get(orders.stream)
        if stream is not None:
            stream.throttle(chance.throttle, now)

    def call(self, action: str, body: bytes, content_type: str, now: Moment) -> Answer:
        """Do what is asked."""
        if action == "PutRecords":
            request = kinesis.read(body, content_type, self._put_records)
            return self._put(action, request.stream, request.records, now)
        if action == "PutRecord":
            one = kinesis.read(body, content_type, self._put_record)
            entry = Entry(one.data, one.partition_key, one.explicit_hash_key)
            return self._put(action, one.stream, [entry], now)
        if action not in self._actions:
            raise Refused("UnknownOperationException")
        decoder, do = self._actions[action]
        request = kinesis.read(body, content_type, decoder)
        fate = self._fate(action, _stream_of(request))
        if fate.refuse is not None or (fate.time_out is not None and not fate.time_out.accepts):
            return Answer(fate=fate)
        return Answer(do(request, now), fate)

    def _fate(self, action: str, stream: str) -> Fate:
        chance, actions = self._chances.get(stream, (NO_FAULTS, frozenset[str]()))
        return chance.next() if action in actions else SPARED

    def _put(self, action: str, name: str, entries: Sequence[Entry], now: Moment) -> Answer:
        is_single = action == "PutRecord"
        fate = self._fate(action, name)
        stream = self.streams.get(name)
        counts = Counts() if stream is None else stream.counts
        counts.requests += 1
        counts.refused_requests += fate.refuse is not None
        counts.unanswered_requests += fate.time_out is not None
        if fate.refuse is not None or (fate.time_out is not None and not fate.time_out.accepts):
            return Answer(fate=fate)
        chance, _ = self._chances.get(name, (NO_FAULTS, None))
        try:
            failed, told = self.streams.put(
                self.streams[name],
                entries,
                now,
                fails=partial(chance.fails, fate.failing) if fate.failing else None,
                shuffle=chance.shuffle if fate.shuffles else None,
                is_single=is_single,
            )
        except Refused:
            counts.refused_requests += 1
            raise
        if not is_single:
            return Answer(b'{"FailedRecordCount":%d,"Records":[%b]}' % (failed, told), fate)
        if failed:
            error = msgspec.json.decode(told, type=dict[str, str])
            code = error["ErrorCode"]
            raise Refused(code, error["ErrorMessage"], SERVER_ERRORS.get(code, 400))
        return Answer(told, fate)

    def _create_stream(self, request: kinesis.CreateStream, now: Moment) -> Body:
        mode = "PROVISIONED" if request.stream_mode_details is None else request.stream_mode_details.stream_mode
        if request.shard_count is None and mode == "PROVISIONED":
            raise Refused("ValidationException", "ShardCount is needed for a stream in provisioned mode.")
        stream = self.streams.create(
            request.stream_name,
            request.shard_count or ON_DEMAND_SHARDS,
            now,
            mode=mode,
            max_record_kib=request.max_record_kib,
        )
        chance, _ = self._chances.get(stream.name, (NO_FAULTS, None))
        stream.throttle(chance.throttle, now.monotonic)
        return None

    def _delete_stream(self, request: kinesis.DeleteStream, _: Moment) -> Body:
        self.streams.delete(request.stream)
        return None

    def _describe_stream(self, request: kinesis.DescribeStream, _: Moment) -> Body:
        stream = self.streams[request.stream]
        shards, has_more = _page(_behind(stream, request.exclusive_start_shard_id), request.limit)
        return {
            "StreamDescription": {
                **_described(stream),
                "HasMoreShards": has_more,
                "Shards": [_shard(shard) for shard in shards],
            }
        }

    def _describe_stream_summary(self, request: kinesis.DescribeStreamSummary, _: Moment) -> Body:
        stream = self.streams[request.stream]
        return {
            "StreamDescriptionSummary": {
                **_described(stream),
                "OpenShardCount": len(stream.shards),
                "ConsumerCount": 0,
                "MaxRecordSizeInKiB": stream.max_record_kib,
            }
        }

    def _list_streams(self, request: kinesis.ListStreams, _: Moment) -> Body:
        behind = request.next_token or request.exclusive_start_stream_name or ""
        names, has_more = _page([name for name in self.streams.names() if name > behind], request.limit)
        answer = {
            "StreamNames": names,
            "HasMoreStreams": has_more,
            "StreamSummaries": [_named(self.streams[name]) for name in names],
        }
        return {**answer, "NextToken": names[-1]} if has_more else answer

    def _list_shards(self, request: kinesis.ListShards, _: Moment) -> Body:
        if request.next_token is None:
            stream, behind = self.streams[request.stream], request.exclusive_start_shard_id
        else:
            name, behind = _untoken(request.next_token, "NextToken", parts=2)
            stream = self.streams[name]
        shards, has_more = _page(_behind(stream, behind), request.max_results)
        answer = {"Shards": [_shard(shard) for shard in shards]}
        return {**answer, "NextToken": _token(stream.name, shards[-1].shard_id)} if has_more else answer

    def _get_shard_iterator(self, request: kinesis.GetShardIterator, _: Moment) -> Body:
        stream = self.streams[request.stream]
        shard = stream.shard(request.shard_id)
        return {"ShardIterator": _token(stream.name, shard.shard_id, str(_start(request, shard)))}

    def _get_records(self, request: kinesis.GetRecords, now: Moment) -> Body:
        name, shard_id, number = _untoken(request.shard_iterator, "ShardIterator", parts=3)
        shard = self.streams[name].shard(shard_id)
        start, end = shard.page(int(number), records=request.limit, size=MAX_ANSWER)
        first = shard.first
        records = [
            {
                "SequenceNumber": shard.sequence_number(at),
                "ApproximateArrivalTimestamp": Timestamp(shard.arrivals[at - first]),
                "Data": entry.data,
                "PartitionKey": entry.partition_key,
            }
            for at, entry in enumerate(shard.entries[start - first : end - first], start)
        ]
        behind = now.ms - shard.arrivals[end - first] if end < shard.next else 0
        return {
            "Records": records,
            "NextShardIterator": _token(name, shard_id, str(end)),
            "MillisBehindLatest": max(0, behind),
        }


def _stream_of(request: Any) -> str:
    """The stream that a request is about, if any."""
    if isinstance(request, kinesis.GetRecords):
        return _untoken(request.shard_iterator, "ShardIterator", parts=3)[0]
    return getattr(request, "stream_name", None) or (getattr(request, "stream_arn", None) or "").rpartition("/")[2]


def _start(request: kinesis.GetShardIterator, shard: Shard) -> int:
    sequence_number, timestamp = request.starting_sequence_number, request.timestamp
    match request.shard_iterator_type:
        case "TRIM_HORIZON":
            return shard.first
        case "LATEST":
            return shard.next
        case "AT_TIMESTAMP" if timestamp is not None:
            return shard.number_at(timestamp * 1000)
        case "AT_SEQUENCE_NUMBER" if sequence_number is not None:
            return shard.number_of(sequence_number)
        case "AFTER_SEQUENCE_NUMBER" if sequence_number is not None:
            return shard.number_of(sequence_number) + 1
    missing = "Timestamp" if request.shard_iterator_type == "AT_TIMESTAMP" else "StartingSequenceNumber"
    raise Refused(
        "InvalidArgumentException", f"Must either specify {missing} or another type than {request.shard_iterator_type}."
    )


def _page(items: Sequence[Item], limit: int) -> tuple[list[Item], bool]:
    return list(items[:limit]), len(items) > limit


def _behind(stream: Stream, shard_id: str | None) -> list[Shard]:
    return stream.shards if shard_id is None else [shard for shard in stream.shards if shard.shard_id > shard_id]


def _named(stream: Stream) -> dict[str, Any]:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": "ACTIVE",
        "StreamModeDetails": {"StreamMode": stream.mode},
        "StreamCreationTimestamp": Timestamp(stream.created_ms),
    }


def _described(stream: Stream) -> dict[str, Any]:
    return {
        **_named(stream),
        "RetentionPeriodHours": RETENTION_HOURS,
        "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
        "EncryptionType": "NONE",
    }


def _shard(shard: Shard) -> dict[str, Any]:
    return {
        "ShardId": shard.shard_id,
        "HashKeyRange": {"StartingHashKey": str(shard.hashes.first), "EndingHashKey": str(shard.hashes.last)},
        "SequenceNumberRange": {"StartingSequenceNumber": shard.sequence_number(0)},
    }


def _token(*parts: str) -> str:
    return urlsafe_b64encode("/".join((ACCOUNT, *parts)).encode()).decode()


def _untoken(token: str, what: str, *, parts: int) -> list[str]:
    try:
        account, *found = urlsafe_b64decode(token.encode()).decode().split("/")
    except ValueError:
        account, found = "", []
    if account != ACCOUNT or len(found) != parts or (parts == 3 and not found[2].isdecimal()):
        raise Refused("InvalidArgumentException", f"Invalid {what}.")
    return found
