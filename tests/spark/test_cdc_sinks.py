"""Changes of Postgres in other places than Kinesis: the same rows, as docs/cdc.md shows it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from strandline.stack.kafka import KafkaCluster
from strandline.stack.postgres import Postgres
from tests.cdc.support import Place
from tests.support import TIMEOUT, read_records, wait_for
from tests.topics import create_topics


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    with Place(postgres) as place:
        place.prepare("create table item (id int primary key, note text)", published="table item")
        place.sql(f"select pg_create_logical_replication_slot('{place.slot}_k', 'pgoutput')")
        place.in_one("insert into item values (1, 'a'), (2, 'b')", "update item set note = 'c' where id = 1")
        place.sql("delete from item where id = 2")
        yield place


def changes(spark: SparkSession, place: Place, slot: str) -> DataFrame:
    options = {"dsn": place.dsn, "slot": slot, "publications": place.publication}
    return spark.readStream.format("postgres_wal").options(**options).load()


def run(writer: DataStreamWriter, until: int) -> None:
    """Run a query until so many rows are delivered."""
    query = writer.start()
    try:
        wait_for(
            lambda: sum(each["numInputRows"] for each in query.recentProgress) >= until or query.exception(),
            "all is delivered",
        )
        assert query.exception() is None
    finally:
        query.stop()


def test_parquet_and_kafka_get_the_same_rows(
    spark: SparkSession, kafka: KafkaCluster, place: Place, tmp_path: Path
) -> None:
    topic, brokers = place.name, kafka.address
    create_topics(kafka.settings(), NewTopic(topic, 1))

    def publish(rows: DataFrame, _epoch: int) -> None:
        failures: list[object] = []

        def told(error: object, _message: Any) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
        for row in rows.toLocalIterator():
            producer.produce(topic, bytes(row.event), row.partition_key, on_delivery=told)
        if producer.flush(60) or failures:
            raise RuntimeError("not all changes are in Kafka; the epoch is sent again")

    files = str(tmp_path / "changes")
    to_files = changes(spark, place, place.slot).writeStream.format("parquet")
    run(to_files.options(path=files, checkpointLocation=str(tmp_path / "files")), until=4)
    to_kafka = changes(spark, place, f"{place.slot}_k").writeStream.foreachBatch(publish)
    run(to_kafka.option("checkpointLocation", str(tmp_path / "kafka")), until=4)
    found = spark.read.parquet(files).orderBy("lsn", "ordinal").collect()
    records = read_records(brokers, topic, 4)
    assert [bytes(row.event) for row in found] == records
    assert [row.op for row in found] == ["c", "c", "u", "d"]
    assert [row.partition_key for row in found] == [f"public.item/{id_}" for id_ in (1, 2, 1, 2)]
    assert json.loads(records[2])["after"] == {"id": 1, "note": "c"}


@pytest.mark.soak
def test_delta_gets_the_same_rows(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    files = str(tmp_path / "changes")
    to_files = changes(spark, place, place.slot).writeStream.format("parquet")
    run(to_files.options(path=files, checkpointLocation=str(tmp_path / "files")), until=4)
    found = spark.read.parquet(files).orderBy("lsn", "ordinal").collect()
    what = [place.dsn, f"{place.slot}_k", place.publication, str(tmp_path / "delta"), "4"]
    command = [sys.executable, "-m", "tests.spark.into_delta", *what]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=4 * TIMEOUT, check=True)
    assert ended.stdout.splitlines() == [bytes(row.event).decode() for row in found]
    assert len(found) == 4
