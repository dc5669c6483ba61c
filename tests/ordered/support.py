"""Topics with exactly the records that a test wants, and what the laws of order say about rows."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse
from kio.schema.types import TopicName
from kio.static.primitive import Records, i16, i32, i32Timedelta

from strandline.kafka.cluster import LATEST, Cluster, Isolation
from strandline.kafka.connection import Connection
from strandline.kafka.partition import Partition
from strandline.kafka.security import Security
from tests.support import TIMEOUT
from tests.topics import create_topics

TEN_SECONDS = timedelta(seconds=10)
# The most that Kafka takes. It aborts a transaction that is open for longer, after a minute unless told otherwise.
OPEN_FOR_LONG = {"transaction.timeout.ms": 900_000}


@dataclass(frozen=True, slots=True)
class Row:
    partition: int
    offset: int
    timestamp: int | None
    value: bytes | None


def create_topic(address: str, name: str, partitions: int = 1, *, replicas: int = 1, **config: str) -> None:
    """Create a topic that keeps records of any age. Its settings have underscores for dots."""
    settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
    create_topics({"bootstrap.servers": address}, NewTopic(name, partitions, replicas, config=settings))


def produce(address: str, topic: str, records: Iterable[tuple[int, int, bytes]], **settings: str | int) -> None:
    """Write records, each given as partition, timestamp and value, and wait until the broker has them."""
    failures = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, **settings})
    for partition, timestamp, value in records:
        producer.produce(
            topic,
            value,
            partition=partition,
            timestamp=timestamp,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    assert not failures


def produce_batch(address: str, topic: str, partition: int, batch: bytes) -> None:
    """Write one record batch, byte for byte."""
    asyncio.run(_produce_batch(address, topic, partition, batch))


async def _produce_batch(address: str, topic: str, partition: int, batch: bytes) -> None:
    host, port = address.split(",", maxsplit=1)[0].split(":")
    connection = await Connection.open(host, int(port), Security.parse({}), client_id="test", within=TIMEOUT)
    request = ProduceRequest(
        transactional_id=None,
        acks=i16(-1),
        timeout=i32Timedelta.parse(TEN_SECONDS),
        topic_data=(
            TopicProduceData(
                name=TopicName(topic),
                partition_data=(PartitionProduceData(index=i32(partition), records=Records(batch)),),
            ),
        ),
    )
    answer = await connection.ask(request, ProduceResponse, within=TIMEOUT)
    connection.close()
    assert [p.error_code for t in answer.responses for p in t.partition_responses] == [ErrorCode.none]


def stable_end(address: str, topic: str, partition: int) -> int:
    """The last stable offset. A transaction's marker is written a little after its producer was told."""

    async def ask() -> int:
        cluster = Cluster({"bootstrap.servers": address})
        try:
            await cluster.partitions([topic])
            asked = Partition(topic, partition)
            return (await cluster.offsets({asked: LATEST}, Isolation.READ_COMMITTED))[asked].offset
        finally:
            cluster.close()

    return asyncio.run(ask())


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """The rows of batches, in order."""
    found = []
    for batch in batches:
        columns = (batch["partition"], batch["offset"], batch["timestamp"].cast(pa.int64()), batch["value"])
        found += [Row(*values) for values in zip(*(column.to_pylist() for column in columns), strict=True)]
    return found


def inversions(rows: Sequence[Row]) -> int:
    """How many rows have an effective time below one that came before them."""
    reached: dict[int, int] = defaultdict(lambda: -(2**63))
    highest, found = -(2**63), 0
    for row in rows:
        reached[row.partition] = max(reached[row.partition], -1 if row.timestamp is None else row.timestamp)
        found += reached[row.partition] < highest
        highest = max(highest, reached[row.partition])
    return found


def offsets(rows: Iterable[Row]) -> dict[int, list[int]]:
    """The offsets by partition, in the order in which they came."""
    found: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        found[row.partition].append(row.offset)
    return dict(found)
