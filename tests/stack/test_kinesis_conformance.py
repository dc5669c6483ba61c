"""The same calls of the SDK to moto's Kinesis and to ours: answers of the same shape, errors of the same code."""

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from strandline.cdc.kinesis import Sender
from strandline.cdc.limits import SendOptions
from strandline.cdc.sending import FOREVER
from strandline.stack import Kinesis
from tests.moto import Moto
from tests.stack.sdk import client, code_of, entries

Call = Callable[[Any], Any]
STREAM = {"StreamName": "conformance"}
SHARD = {**STREAM, "ShardId": "shardId-000000000001"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto() as moto:
        yield moto


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinesis]:
    """An endpoint without the streams of other tests."""
    kinesis = Kinesis(tmp_path_factory.mktemp("kinesis"))
    kinesis.start(Event())
    yield kinesis
    kinesis.stop()


def iterate(kind: str, **where: Any) -> Call:
    def call(client: Any) -> Any:
        if kind.endswith("SEQUENCE_NUMBER"):
            where["StartingSequenceNumber"] = sequence_number(client)
        cursor = client.get_shard_iterator(**SHARD, ShardIteratorType=kind, **where)
        return client.get_records(ShardIterator=cursor["ShardIterator"])

    return call


def sequence_number(client: Any) -> str:
    cursor = client.get_shard_iterator(**SHARD, ShardIteratorType="TRIM_HORIZON")
    return str(client.get_records(ShardIterator=cursor["ShardIterator"], Limit=1)["Records"][0]["SequenceNumber"])


# In this order: what one makes the next ones find.
CALLS: dict[str, Call] = {
    "no stream to describe": lambda client: client.describe_stream(**STREAM),
    "no stream to summarise": lambda client: client.describe_stream_summary(**STREAM),
    "no stream to list shards of": lambda client: client.list_shards(**STREAM),
    "no stream to delete": lambda client: client.delete_stream(**STREAM),
    "no stream to put a record": lambda client: client.put_record(**STREAM, **entries(b"")[0]),
    "no stream to put records": lambda client: client.put_records(**STREAM, Records=entries(b"")),
    "no stream to read": lambda client: client.get_shard_iterator(**SHARD, ShardIteratorType="LATEST"),
    "create": lambda client: client.create_stream(**STREAM, ShardCount=3),
    "create again": lambda client: client.create_stream(**STREAM, ShardCount=3),
    "create on demand": lambda client: client.create_stream(
        StreamName="on-demand", StreamModeDetails={"StreamMode": "ON_DEMAND"}
    ),
    "wait until it exists": lambda client: client.get_waiter("stream_exists").wait(**STREAM),
    "describe": lambda client: client.describe_stream(**STREAM),
    "describe some shards": lambda client: client.describe_stream(**STREAM, Limit=1),
    "describe by ARN": lambda client: client.describe_stream(
        StreamARN=client.describe_stream(**STREAM)["StreamDescription"]["StreamARN"]
    ),
    "summarise": lambda client: client.describe_stream_summary(**STREAM),
    "list streams": lambda client: client.list_streams(),
    "list shards": lambda client: client.list_shards(**STREAM),
    "list some shards": lambda client: client.list_shards(**STREAM, MaxResults=2),
    "read nothing": iterate("TRIM_HORIZON"),
    "put a record": lambda client: client.put_record(**STREAM, **entries(b"one", key="1")[0]),
    "put an empty record": lambda client: client.put_record(**STREAM, **entries(b"", key="1")[0]),
    "put records": lambda client: client.put_records(
        **STREAM, Records=[entry for n in range(20) for entry in entries(b"\0\xff", key=str(n))]
    ),
    "put by hash key": lambda client: client.put_record(**STREAM, **entries(b"")[0], ExplicitHashKey=str(2**127)),
    "hash key out of range": lambda client: client.put_record(**STREAM, **entries(b"")[0], ExplicitHashKey=str(2**128)),
    "501 records": lambda client: client.put_records(**STREAM, Records=entries(*[b""] * 501)),
    "record too large with its key": lambda client: client.put_records(**STREAM, Records=entries(b"x" * MIB)),
    "request too large": lambda client: client.put_records(**STREAM, Records=entries(*[b"x" * (MIB - 1)] * 11)),
    "no such shard": lambda client: client.get_shard_iterator(
        **STREAM, ShardId="shardId-000000000009", ShardIteratorType="LATEST"
    ),
    "read from the beginning": iterate("TRIM_HORIZON"),
    "read from the end": iterate("LATEST"),
    "read from a record on": iterate("AT_SEQUENCE_NUMBER"),
    "read behind a record": iterate("AFTER_SEQUENCE_NUMBER"),
    "read from a time on": iterate("AT_TIMESTAMP", Timestamp=1.0),
    "delete": lambda client: client.delete_stream(**STREAM),
    "describe what is deleted": lambda client: client.describe_stream(**STREAM),
}


def shape(value: Any) -> Any:
    """A value with types in place of contents; a list as how many it has, and the shape of the first."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "ResponseMetadata"}
    if isinstance(value, list):
        return [len(value), *(shape(item) for item in value[:1])]
    return type(value).__name__


def holds(ours: Any, theirs: Any) -> bool:
    """Whether ours has all that theirs has. It may have more: moto leaves out what is optional."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and holds(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(holds, ours, theirs))
    return bool(ours == theirs)


def told(call: Call, client: Any) -> Any:
    try:
        return shape(call(client))
    except ClientError as error:
        return code_of(error)


def test_every_call_is_answered_as_by_moto(moto: Moto, fresh: Kinesis) -> None:
    ours, theirs = client(fresh.endpoint), client(moto.endpoint)
    differing = {}
    for name, call in CALLS.items():
        our, their = told(call, ours), told(call, theirs)
        if not holds(our, their):
            differing[name] = (our, their)
    assert not differing


def test_a_key_is_of_the_same_shard_as_with_moto(moto: Moto, fresh: Kinesis) -> None:
    records = [entry for n in range(100) for entry in entries(b"", key=f"key-{n}")]
    placed = []
    for endpoint in (fresh.endpoint, moto.endpoint):
        sdk = client(endpoint)
        sdk.create_stream(StreamName="placed", ShardCount=7)
        placed.append([each["ShardId"] for each in sdk.put_records(StreamName="placed", Records=records)["Records"]])
    assert placed[0] == placed[1]
    assert len(set(placed[0])) == 7


def test_moto_takes_what_our_own_sender_sends(moto: Moto, fresh: Kinesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fresh.settings().items():
        monkeypatch.setenv(name, value)
    sdk = client(moto.endpoint)
    sdk.create_stream(StreamName="sent", ShardCount=2)
    rows = {"lsn": [7] * 50, "ordinal": list(range(50)), "partition_key": [f"key {n % 20}" for n in range(50)]}
    batch = pa.record_batch({**rows, "event": [b'{"n":%d}' % n for n in range(50)]})
    with Sender("sent", endpoint_url=moto.endpoint, options=SendOptions(shards=2)) as sender:
        found = sender.describe()
        assert found is not None
        assert (found.status, found.shards) == ("ACTIVE", 2)
        assert sender.send([batch], leadership=3, fence=lambda: FOREVER).records == 50
    arrived: dict[str, list[bytes]] = {}
    for shard in sdk.list_shards(StreamName="sent")["Shards"]:
        where = {"StreamName": "sent", "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
        cursor = sdk.get_shard_iterator(**where)["ShardIterator"]
        for record in sdk.get_records(ShardIterator=cursor)["Records"]:
            arrived.setdefault(record["PartitionKey"], []).append(record["Data"])
    assert arrived == {
        f"key {key}": [b'{"leadership":3,"n":%d}' % n for n in range(50) if n % 20 == key] for key in range(20)
    }
