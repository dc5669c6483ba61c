"""Our Kinesis endpoint, asked by the SDK: order, limits, faults, what it keeps and what it tells of it."""

import itertools
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from strandline.errors import StackError
from strandline.stack import FailRecords, Fault, Kinesis, Refuse, Shuffle, Slow, Throttle, TimeOut
from tests.stack.sdk import client, code_of, entries
from tests.support import TIMEOUT, wait_for

MIB = 1 << 20
numbers = itertools.count()


@pytest.fixture
def stream(kinesis: Kinesis) -> Iterator[str]:
    """A stream of four shards."""
    name = f"stream-{next(numbers)}"
    sdk = client(kinesis.endpoint)
    sdk.create_stream(StreamName=name, ShardCount=4)
    yield name
    kinesis.set_faults(name)
    sdk.delete_stream(StreamName=name)


@pytest.fixture
def sdk(kinesis: Kinesis) -> Any:
    return client(kinesis.endpoint)


def data_of(kinesis: Kinesis, stream: str) -> list[bytes]:
    return [record.data for shard in kinesis.records(stream).values() for record in shard]


def test_a_shard_has_its_records_in_the_order_of_their_sequence_numbers(
    kinesis: Kinesis, sdk: Any, stream: str
) -> None:
    sent = [(f"key-{n % 17}", str(n).encode()) for n in range(1000)]
    told: dict[bytes, tuple[str, str]] = {}
    for at in range(0, 1000, 250):
        batch = sent[at : at + 250]
        answer = sdk.put_records(StreamName=stream, Records=[e for key, data in batch for e in entries(data, key=key)])
        assert answer["FailedRecordCount"] == 0
        for (_, data), result in zip(batch, answer["Records"], strict=True):
            told[data] = (result["ShardId"], result["SequenceNumber"])
    shards = kinesis.records(stream)
    assert len(shards) == 4
    assert {record.data: (shard, record.sequence_number) for shard in shards for record in shards[shard]} == told
    for records in shards.values():
        assert [int(record.sequence_number) for record in records] == sorted(int(r.sequence_number) for r in records)
        assert [int(record.data) for record in records] == sorted(int(record.data) for record in records)
        assert [record.arrived_ms for record in records] == sorted(record.arrived_ms for record in records)
    assert {key for key, _ in sent} == {record.partition_key for records in shards.values() for record in records}


def test_what_is_read_back_is_what_the_sdk_reads(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    sdk.put_records(StreamName=stream, Records=[e for n in range(50) for e in entries(bytes([n]), key=str(n))])
    for shard, records in kinesis.records(stream).items():
        cursor = sdk.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
        page = sdk.get_records(ShardIterator=cursor["ShardIterator"], Limit=3)
        found = page["Records"]
        while page["MillisBehindLatest"] or page["Records"]:
            page = sdk.get_records(ShardIterator=page["NextShardIterator"], Limit=3)
            found += page["Records"]
        assert [(r["SequenceNumber"], r["PartitionKey"], r["Data"]) for r in found] == [
            (record.sequence_number, record.partition_key, record.data) for record in records
        ]
        arrived = [datetime.fromtimestamp(record.arrived_ms / 1000, UTC) for record in records]
        assert all(
            abs(told["ApproximateArrivalTimestamp"] - at) < timedelta(milliseconds=2)
            for told, at in zip(found, arrived, strict=True)
        )


def test_every_place_in_a_shard_can_be_read_from(kinesis: Kinesis, sdk: Any) -> None:
    sdk.create_stream(StreamName="places", ShardCount=1)
    sent = [sdk.put_record(StreamName="places", **entry)["SequenceNumber"] for entry in entries(b"0", b"1", b"2", b"3")]
    (shard,) = kinesis.records("places")

    def read(kind: str, **where: Any) -> bytes:
        cursor = sdk.get_shard_iterator(StreamName="places", ShardId=shard, ShardIteratorType=kind, **where)
        return b"".join(r["Data"] for r in sdk.get_records(ShardIterator=cursor["ShardIterator"])["Records"])

    assert read("TRIM_HORIZON") == b"0123"
    assert read("LATEST") == b""
    assert read("AT_SEQUENCE_NUMBER", StartingSequenceNumber=sent[2]) == b"23"
    assert read("AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=sent[2]) == b"3"
    assert read("AT_TIMESTAMP", Timestamp=0) == b"0123"
    assert read("AT_TIMESTAMP", Timestamp=4e9) == b""
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"):
        with pytest.raises(ClientError) as error:
            read(kind)
        assert code_of(error.value) == "InvalidArgumentException"
    with pytest.raises(ClientError) as error:
        read("AT_SEQUENCE_NUMBER", StartingSequenceNumber="5")
    assert code_of(error.value) == "InvalidArgumentException"
    with pytest.raises(ClientError) as error:
        sdk.get_records(ShardIterator="elsewhere")
    assert code_of(error.value) == "InvalidArgumentException"


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (entries(*[b""] * 500), None),
        (entries(*[b""] * 501), "ValidationException"),
        ([], "ValidationException"),
        (entries(b"x" * (MIB - 1)), None),
        (entries(b"x" * MIB), "ValidationException"),
        (entries(b"x" * (MIB - 256), key="k" * 256), None),
        (entries(b"", key="é" * 256), None),
        (entries(b"", key="é" * 257), "ValidationException"),
        (entries(b"", key=""), "ValidationException"),
        (entries(*[b"x" * (MIB - 1)] * 10), None),
        ([*entries(*[b"x" * (MIB - 1)] * 10), *entries(b"")], "InvalidArgumentException"),
        ([{"PartitionKey": "a"}], "ValidationException"),
        ([{**entries(b"")[0], "ExplicitHashKey": str(2**128)}], "InvalidArgumentException"),
    ],
    ids=range(13),
)
def test_the_limits_are_those_of_kinesis(
    kinesis: Kinesis, sdk: Any, stream: str, records: list[dict[str, object]], code: str | None
) -> None:
    if code is None:
        assert sdk.put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
        assert kinesis.counts(stream).records == len(records)
    else:
        with pytest.raises(ClientError) as error:
            sdk.put_records(StreamName=stream, Records=records)
        assert code_of(error.value) == code
        assert kinesis.counts(stream).records == 0
        assert data_of(kinesis, stream) == []


def test_a_stream_can_be_made_for_larger_records(sdk: Any) -> None:
    sdk.create_stream(StreamName="large", ShardCount=1, MaxRecordSizeInKiB=4096)
    summary = sdk.describe_stream_summary(StreamName="large")["StreamDescriptionSummary"]
    assert summary["MaxRecordSizeInKiB"] == 4096
    assert sdk.put_record(StreamName="large", Data=b"x" * (4 * MIB - 1), PartitionKey="a")
    with pytest.raises(ClientError) as error:
        sdk.put_record(StreamName="large", Data=b"x" * (4 * MIB), PartitionKey="a")
    assert code_of(error.value) == "ValidationException"
    sdk.delete_stream(StreamName="large")


def test_a_request_without_credentials_is_refused(kinesis: Kinesis, stream: str) -> None:
    with pytest.raises(ClientError) as error:
        client(kinesis.endpoint, is_signed=False).describe_stream(StreamName=stream)
    assert code_of(error.value) == "MissingAuthenticationTokenException"


def test_streams_and_shards_are_listed_page_by_page(sdk: Any, stream: str) -> None:
    pages = sdk.get_paginator("list_shards").paginate(StreamName=stream, PaginationConfig={"PageSize": 3})
    assert [[shard["ShardId"][-1] for shard in page["Shards"]] for page in pages] == [["0", "1", "2"], ["3"]]
    shards = sdk.get_paginator("describe_stream").paginate(StreamName=stream, PaginationConfig={"PageSize": 3})
    assert [[s["ShardId"][-1] for s in page["StreamDescription"]["Shards"]] for page in shards] == [
        ["0", "1", "2"],
        ["3"],
    ]
    for name in ("listed-1", "listed-2"):
        sdk.create_stream(StreamName=name, ShardCount=1)
    names = [
        name
        for page in sdk.get_paginator("list_streams").paginate(PaginationConfig={"PageSize": 1})
        for name in page["StreamNames"]
    ]
    assert names == sorted({*names, "listed-1", "listed-2", stream})
    with pytest.raises(ClientError) as error:
        sdk.list_shards(NextToken="elsewhere")
    assert code_of(error.value) == "InvalidArgumentException"


def test_an_action_that_is_not_there_is_refused(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    with pytest.raises(ClientError) as error:
        sdk.split_shard(StreamName=stream, ShardToSplit="shardId-000000000000", NewStartingHashKey="1")
    assert code_of(error.value) == "UnknownOperationException"


def test_each_shard_is_throttled_by_itself(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Throttle(records_per_s=1, bytes_per_s=MIB))
    records = [entry for n in range(100) for entry in entries(str(n).encode(), key=str(n))]
    results = sdk.put_records(StreamName=stream, Records=records)
    # All in one moment: each shard takes its first record and no other.
    assert results["FailedRecordCount"] == 96
    assert {result.get("ErrorCode") for result in results["Records"]} == {
        None,
        "ProvisionedThroughputExceededException",
    }
    assert [len(shard) for shard in kinesis.records(stream).values()] == [1, 1, 1, 1]
    assert kinesis.counts(stream).throttled_records == 96


def test_a_throttled_shard_takes_more_after_a_time(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Throttle(records_per_s=2))

    def failed(count: int) -> int:
        return int(sdk.put_records(StreamName=stream, Records=entries(*[b""] * count))["FailedRecordCount"])

    assert failed(5) == 3
    wait_for(lambda: not failed(1), "a record passes again")


def test_bytes_are_throttled_too(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Throttle(bytes_per_s=1000))
    results = sdk.put_records(StreamName=stream, Records=entries(*[b"x" * 600] * 3))
    assert ["ErrorCode" in result for result in results["Records"]] == [False, True, True]
    kinesis.set_faults(stream, Throttle(bytes_per_s=1))
    assert sdk.put_record(StreamName=stream, **entries(b"x" * 600)[0])
    with pytest.raises(ClientError) as error:
        sdk.put_record(StreamName=stream, **entries(b"")[0])
    assert code_of(error.value) == "ProvisionedThroughputExceededException"


@pytest.mark.parametrize("code", ["InternalFailure", "ProvisionedThroughputExceededException"])
def test_a_share_of_the_records_fails_and_only_the_others_are_kept(
    kinesis: Kinesis, sdk: Any, stream: str, code: Any
) -> None:
    records = [entry for n in range(200) for entry in entries(str(n).encode(), key=str(n))]

    def failed(seed: int) -> list[bool]:
        kinesis.set_faults(stream, FailRecords(share=0.5, code=code), seed=seed)
        answer = sdk.put_records(StreamName=stream, Records=records)
        assert {result["ErrorCode"] for result in answer["Records"] if "ErrorCode" in result} == {code}
        hit = ["ErrorCode" in result for result in answer["Records"]]
        assert answer["FailedRecordCount"] == sum(hit)
        return hit

    first = failed(seed=7)
    assert 50 < sum(first) < 150
    kept = sorted(int(data) for data in data_of(kinesis, stream))
    assert kept == [n for n, hit in enumerate(first) if not hit]
    assert failed(seed=7) == first
    assert failed(seed=8) != first


def test_what_was_answered_as_accepted_is_what_is_kept_whoever_sends_at_once(kinesis: Kinesis, stream: str) -> None:
    kinesis.set_faults(stream, FailRecords(share=0.3), Throttle(records_per_s=300), Shuffle(), seed=5)

    def send(sender: int) -> dict[str, bytes]:
        sdk, accepted = client(kinesis.endpoint), {}
        for number in range(10):
            data = [f"{sender} {number} {n}".encode() for n in range(50)]
            records = [entry for each in data for entry in entries(each, key=each.decode())]
            for each, result in zip(data, sdk.put_records(StreamName=stream, Records=records)["Records"], strict=True):
                if "SequenceNumber" in result:
                    accepted[f"{result['ShardId']} {result['SequenceNumber']}"] = each
        return accepted

    with ThreadPoolExecutor(4) as pool:
        accepted = list(pool.map(send, range(4)))
    kept = {f"{shard} {r.sequence_number}": r.data for shard, rs in kinesis.records(stream).items() for r in rs}
    assert kept == {place: data for one in accepted for place, data in one.items()}
    assert len(kept) == sum(map(len, accepted)) == kinesis.counts(stream).records
    assert 0 < len(kept) < 2000


def test_the_records_of_a_request_can_be_taken_in_any_order(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Shuffle(), seed=1)
    sent = [bytes([n]) for n in range(100)]
    answer = sdk.put_records(StreamName=stream, Records=entries(*sent))
    kept = [record for shard in kinesis.records(stream).values() for record in shard]
    assert [record.data for record in kept] != sent
    assert {record.data: record.sequence_number for record in kept} == {
        data: result["SequenceNumber"] for data, result in zip(sent, answer["Records"], strict=True)
    }


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        (Refuse(code="AccessDeniedException"), (400, "AccessDeniedException")),
        (Refuse(code="ResourceNotFoundException"), (400, "ResourceNotFoundException")),
        (Refuse(code="KMSDisabledException"), (400, "KMSDisabledException")),
        (Refuse(code="KMSThrottlingException"), (400, "KMSThrottlingException")),
        (Refuse(code="InternalFailure"), (500, "InternalFailure")),
        (Refuse(code="ServiceUnavailable"), (503, "ServiceUnavailable")),
        (Refuse(code="", status=503), (503, "503")),
        (Refuse(code="", status=599), (599, "599")),
    ],
    ids=range(8),
)
def test_errors_are_answered_by_code_and_nothing_is_kept(
    kinesis: Kinesis, sdk: Any, stream: str, fault: Refuse, answer: tuple[int, str]
) -> None:
    kinesis.set_faults(stream, fault)
    for put, records in ((sdk.put_records, {"Records": entries(b"")}), (sdk.put_record, entries(b"")[0])):
        with pytest.raises(ClientError) as error:
            put(StreamName=stream, **records)
        status = error.value.response["ResponseMetadata"]["HTTPStatusCode"]
        assert (status, code_of(error.value)) == answer
    assert sdk.describe_stream(StreamName=stream)["StreamDescription"]["StreamName"] == stream
    counts = kinesis.counts(stream)
    assert (counts.requests, counts.refused_requests, counts.records) == (2, 2, 0)


def test_a_fault_can_be_asked_for_other_actions(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Refuse(code="AccessDeniedException"), actions=["DescribeStreamSummary"])
    with pytest.raises(ClientError) as error:
        sdk.describe_stream_summary(StreamName=stream)
    assert code_of(error.value) == "AccessDeniedException"
    assert sdk.put_record(StreamName=stream, **entries(b"")[0])
    kinesis.set_faults(stream, Refuse(code="KMSDisabledException"), actions=["GetRecords"])
    cursor = sdk.get_shard_iterator(StreamName=stream, ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON")
    with pytest.raises(ClientError) as error:
        sdk.get_records(ShardIterator=cursor["ShardIterator"])
    assert code_of(error.value) == "KMSDisabledException"


def test_faults_end_when_they_were_committed_as_often_as_asked(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Refuse(code="InternalFailure", times=2), FailRecords(share=1, times=1))
    for _ in range(2):
        with pytest.raises(ClientError):
            sdk.put_records(StreamName=stream, Records=entries(b""))
    assert sdk.put_records(StreamName=stream, Records=entries(b""))["FailedRecordCount"] == 0


@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("closes_after_s", [0, 600])
def test_a_request_times_out_after_it_was_accepted_or_before(
    kinesis: Kinesis, stream: str, accepts: bool, closes_after_s: int
) -> None:
    kinesis.set_faults(stream, TimeOut(accepts=accepts, closes_after_s=closes_after_s, times=1))
    sdk = client(kinesis.endpoint, read_timeout=0.3 if closes_after_s else TIMEOUT)
    with pytest.raises(ReadTimeoutError if closes_after_s else ConnectionClosedError):
        sdk.put_records(StreamName=stream, Records=entries(b"sent"))
    # A client that has given up may have done so before the endpoint had its turn.
    wait_for(lambda: kinesis.counts(stream).unanswered_requests == 1, "the endpoint has had the request")
    assert data_of(kinesis, stream) == ([b"sent"] if accepts else [])
    assert client(kinesis.endpoint).put_record(StreamName=stream, **entries(b"next")[0])


def test_a_slow_answer_comes_and_what_it_answers_was_accepted_at_once(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    kinesis.set_faults(stream, Slow(seconds=0.2))
    begin = time.monotonic()
    assert sdk.put_record(StreamName=stream, **entries(b"slow")[0])["SequenceNumber"]
    assert time.monotonic() - begin > 0.1
    kinesis.set_faults(stream, Slow(seconds=600))
    with pytest.raises(ReadTimeoutError):
        client(kinesis.endpoint, read_timeout=0.3).put_record(StreamName=stream, **entries(b"slower")[0])
    wait_for(lambda: data_of(kinesis, stream) == [b"slow", b"slower"], "it was accepted")


@pytest.mark.parametrize("fault", [Refuse(code="InternalFailure"), Throttle(records_per_s=1)])
def test_faults_of_a_stream_can_be_asked_for_before_it_is_made_and_end_when_told(
    kinesis: Kinesis, sdk: Any, fault: Fault
) -> None:
    kinesis.set_faults("later", fault)
    sdk.create_stream(StreamName="later", ShardCount=1)
    try:
        for well in (False, True):
            if well:
                kinesis.set_faults("later")
            try:
                failed = sdk.put_records(StreamName="later", Records=entries(b"", b""))["FailedRecordCount"]
            except ClientError:
                failed = 2
            assert (failed == 0) is well
    finally:
        sdk.delete_stream(StreamName="later")


def test_asking_for_a_stream_that_is_not_there_is_an_error(kinesis: Kinesis) -> None:
    with pytest.raises(StackError, match=r"kinesis: /records is refused: Stream nowhere under account \d+ not found"):
        kinesis.records("nowhere")
    with pytest.raises(StackError, match="kinesis: /counts is refused"):
        kinesis.counts("nowhere")
    with pytest.raises(StackError, match=r"kinesis: /faults is refused: .*share"):
        kinesis.set_faults("s", FailRecords(share=2))


def test_more_than_may_be_kept_is_refused_and_said_and_a_deleted_stream_makes_room(tmp_path: Path) -> None:
    server = Kinesis(tmp_path / "kinesis", keep_bytes=10_000)
    server.start(Event())
    try:
        sdk = client(server.endpoint)
        sdk.create_stream(StreamName="full", ShardCount=1)
        assert sdk.put_records(StreamName="full", Records=entries(*[b"x" * 299] * 19))["FailedRecordCount"] == 0
        with pytest.raises(ClientError, match="keeps at most 10,000 bytes") as error:
            sdk.put_records(StreamName="full", Records=entries(b"x" * 300))
        assert code_of(error.value) == "EndpointFull"
        assert "keeps at most 10,000 bytes of records, and that is reached" in (
            tmp_path / "kinesis" / "kinesis.log"
        ).read_text(encoding="utf-8")
        assert len(data_of(server, "full")) == 19
        sdk.delete_stream(StreamName="full")
        sdk.create_stream(StreamName="full", ShardCount=1)
        assert sdk.put_records(StreamName="full", Records=entries(b"x" * 300))["FailedRecordCount"] == 0
    finally:
        server.stop()


def test_an_endpoint_that_keeps_nothing_counts_without_an_end(tmp_path: Path) -> None:
    server = Kinesis(tmp_path / "kinesis", keep_bytes=0)
    server.start(Event())
    try:
        sdk = client(server.endpoint)
        sdk.create_stream(StreamName="null", ShardCount=2)
        seen = []
        for _ in range(3):
            answer = sdk.put_records(StreamName="null", Records=entries(*[b"x" * 99] * 500))
            seen += [result["SequenceNumber"] for result in answer["Records"]]
        assert seen == sorted(set(seen))
        counts = server.counts("null")
        assert (counts.requests, counts.records, counts.bytes) == (3, 1500, 150_000)
        assert list(server.records("null").values()) == [[], []]
    finally:
        server.stop()


def test_all_that_was_accepted_is_read_back_over_many_pages(kinesis: Kinesis, sdk: Any, stream: str) -> None:
    sent = [bytes([n]) * 700_000 for n in range(20)]
    for at in range(0, 20, 10):
        sdk.put_records(StreamName=stream, Records=entries(*sent[at : at + 10]))
    assert data_of(kinesis, stream) == sent


def test_it_listens_on_loopback_only(kinesis: Kinesis) -> None:
    host, port = kinesis.address.split(":")
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", int(port)), timeout=5)
