"""The sink `kinesis` as a task of Spark runs it, without Spark: under a lease, and what it tells of an epoch."""

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pyarrow as pa
import pytest
from pyspark import TaskContext

from strandline.cdc.figures import Figures, Listening
from strandline.cdc.lease import Leadership, acquire, create_lease_table
from strandline.cdc.session import Session
from strandline.errors import NotLeading, OptionError
from strandline.spark import kinesis as sink
from strandline.spark.kinesis import StreamWriter, sender_of
from strandline.spark.kinesis_options import SinkOptions
from strandline.stack import FailRecords, Kinesis
from strandline.stack.postgres import Postgres
from tests.cdc.support import Place
from tests.support import wait_for

COMMITTED = datetime.now(UTC) - timedelta(seconds=5)


class Task:
    """What the sink asks of Spark."""

    def __init__(self, batch: int, attempt: int, partition: int = 0) -> None:
        self._batch, self._attempt, self._partition = batch, attempt, partition

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._attempt

    def getLocalProperty(self, _name: str) -> str:  # noqa: N802
        return str(self._batch)


@pytest.fixture
def place(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # They are for processes of Spark.
    monkeypatch.setattr(sink, "settle", lambda: None)
    monkeypatch.setattr(sink, "stay_supervised", lambda _: None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    with Place(postgres) as place:
        with Session(place.dsn) as session:
            create_lease_table(session)
        yield place


@pytest.fixture
def leadership(place: Place) -> Iterator[Leadership]:
    found = acquire(place.dsn, "orders", "me", wait=timedelta(seconds=30), term=timedelta(minutes=2))
    assert found is not None
    with found:
        yield found


def rows(*keys: str) -> pa.RecordBatch:
    count = len(keys)
    columns: dict[str, Any] = {
        "lsn": [7] * count,
        "ordinal": list(range(count)),
        "committed": pa.array([COMMITTED] * count, pa.timestamp("us", "UTC")),
        "partition_key": list(keys),
        "event": pa.array([b'{"op":"c"}'] * count, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_a_task_sends_under_its_lease_and_its_figures_reach_who_listens(
    place: Place, kinesis: Kinesis, leadership: Leadership, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    client = boto3.client("kinesis", endpoint_url=kinesis.endpoint, region_name="us-east-1", **keys)
    client.create_stream(StreamName=place.name, ShardCount=1)
    heard: list[Figures] = []
    with Listening(heard.append) as listening:
        options = SinkOptions.parse(
            {
                "stream": place.name,
                "region": "us-east-1",
                "endpointUrl": kinesis.endpoint,
                "dsn": place.dsn,
                "lease": "orders",
                "leadership": str(leadership.number),
                "figuresTo": listening.place,
            }
        )
        # As it comes to a task.
        writer: StreamWriter = pickle.loads(pickle.dumps(StreamWriter(options)))  # noqa: S301
        kinesis.set_faults(
            place.name, FailRecords(share=1.0, code="ProvisionedThroughputExceededException", times=1), seed=1
        )
        monkeypatch.setattr(TaskContext, "get", lambda: Task(3, 0))
        message = writer.write(iter([rows("a", "b", "a")]))
        writer.commit([pickle.loads(pickle.dumps(message)), None], 3)  # noqa: S301
        wait_for(lambda: heard, "the figures are heard")
        (told,) = heard
        assert (told.epoch, told.records, told.dead_lettered) == (3, 3, 0)
        assert told.retried == told.throttled > 0
        assert 5 <= (told.delay_s or 0) <= (datetime.now(UTC) - COMMITTED).total_seconds()
        (shard,) = kinesis.records(place.name).values()
        begin = f'{{"leadership":{leadership.number},"op":"c"}}'.encode()
        assert [record.data for record in shard] == [begin] * 3
        # An epoch without rows tells of nothing but itself.
        writer.commit([writer.write(iter([]))], 4)
        wait_for(lambda: len(heard) == 2, "the figures are heard")
        assert heard[1] == Figures(epoch=4)
        monkeypatch.setattr(TaskContext, "get", lambda: Task(2, 9))
        with pytest.raises(NotLeading, match="has taken over"):
            writer.write(iter([rows("a")]))
        monkeypatch.setattr(TaskContext, "get", lambda: Task(5, 0, partition=1))
        with pytest.raises(OptionError, match="takes one partition"):
            writer.write(iter([rows("a")]))
        sender_of(options).close()
        sender_of.cache_clear()
