"""Changes of a real Postgres in a Kinesis stream, through the source and the sink, in one session of Spark."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.stack import Kinesis, Refuse
from strandline.stack.postgres import Postgres
from tests.cdc.history import READ, TABLE, TRIGGERS, check
from tests.cdc.support import Place
from tests.support import wait_for

Start = Callable[..., StreamingQuery]


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    with Place(postgres) as place:
        place.prepare(TABLE, TRIGGERS, published="table item")
        yield place


@pytest.fixture
def stream(spark: SparkSession, kinesis: Kinesis, place: Place) -> str:
    client = boto3.client("kinesis", endpoint_url=kinesis.endpoint, region_name="us-east-1")
    client.create_stream(StreamName=place.name, ShardCount=3)
    return place.name


@pytest.fixture
def start(spark: SparkSession, kinesis: Kinesis, place: Place, stream: str, tmp_path: Path) -> Iterator[Start]:
    """Starts the query, always from the same checkpoint."""
    started: list[StreamingQuery] = []

    def run(source: dict[str, str] | None = None, sink: dict[str, str] | None = None) -> StreamingQuery:
        reading = {"dsn": place.dsn, "slot": place.slot, "publications": place.publication, **(source or {})}
        writing = {
            "stream": stream,
            "endpointUrl": kinesis.endpoint,
            "region": "us-east-1",
            "checkpointLocation": str(tmp_path / "checkpoint"),
            **(sink or {}),
        }
        rows = spark.readStream.format("postgres_wal").options(**reading).load()
        started.append(rows.writeStream.format("kinesis").options(**writing).start())
        return started[-1]

    yield run
    for query in started:
        query.stop()


def events(kinesis: Kinesis, stream: str) -> list[dict[str, Any]]:
    return [json.loads(record.data) for shard in kinesis.records(stream).values() for record in shard]


def count(kinesis: Kinesis, stream: str) -> int:
    return sum(map(len, kinesis.records(stream).values()))


def write(place: Place, first: int = 0) -> None:
    """Inserts, updates, deletes, a changed key, what is rolled back, savepoints and a truncate of nothing."""
    a, b, c, d = range(first, first + 4)
    place.in_one(f"insert into item select n, 1, 'x' from generate_series({a}, {d}) n")
    place.in_one(f"update item set version = 2 where id = {a}", f"update item set version = 3 where id = {a}")
    place.sql(f"begin; insert into item values ({first + 100}, 1, 'never'); rollback")
    place.sql(f"begin; update item set version = 2 where id = {b}; savepoint s; delete from item where id = {b}; "
              f"rollback to s; update item set version = 3 where id = {b}; commit")  # fmt: skip
    place.sql(f"delete from item where id = {c}", f"insert into item values ({c}, 9, null)")
    place.sql(f"update item set id = {first + 50} where id = {d}")


def test_what_arrives_is_what_happened_and_only_then_the_slot_moves(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    before = place.confirmed()
    query = start({"splitKeyChanges": "true", "maxRowsPerEpoch": "3"})
    write(place)
    history = place.sql(READ)
    wait_for(lambda: count(kinesis, stream) >= len(history) or query.exception(), "all has arrived")
    assert query.exception() is None
    assert check(history, kinesis.records(stream)) == 0
    # Nothing else is written, and yet the slot is told.
    wait_for(lambda: place.confirmed() > before, "the slot moves on")
    found = events(kinesis, stream)
    assert {event["source"]["db"] for event in found} == {place.name}
    assert all("leadership" not in event for event in found)


def test_after_a_refusal_nothing_is_acknowledged_and_the_next_run_brings_all(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    before = place.confirmed()
    kinesis.set_faults(stream, Refuse(code="AccessDeniedException"))
    query = start({"splitKeyChanges": "true"})
    write(place)
    wait_for(lambda: not query.isActive, "the query has ended")
    assert "allow these credentials kinesis:PutRecords on it" in str(query.exception())
    assert place.confirmed() == before
    kinesis.set_faults(stream)
    write(place, first=1000)
    history = place.sql(READ)
    again = start({"splitKeyChanges": "true"})
    wait_for(lambda: count(kinesis, stream) >= len(history) or again.exception(), "all has arrived")
    assert again.exception() is None
    check(history, kinesis.records(stream))


def test_a_record_that_the_stream_will_never_take_is_put_away_and_the_rest_goes_on(
    kinesis: Kinesis, place: Place, stream: str, start: Start, tmp_path: Path
) -> None:
    query = start(sink={"deadLetterDirectory": str(tmp_path / "dead"), "maxRecordBytes": "2000"})
    place.sql("insert into item values (1, 1, 'x')", "insert into item values (2, 1, repeat('y', 3000))")
    place.sql("insert into item values (3, 1, 'z')")
    wait_for(lambda: count(kinesis, stream) >= 2 or query.exception(), "the others have arrived")
    assert [event["after"]["id"] for event in sorted(events(kinesis, stream), key=lambda e: e["after"]["id"])] == [1, 3]
    (file,) = (tmp_path / "dead").glob("*.jsonl")
    (letter,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert "more than the 2,000 bytes" in letter["reason"]


def test_a_wrong_option_is_refused_through_spark(spark: SparkSession, place: Place) -> None:
    rows = spark.readStream.format("postgres_wal").options(dsn=place.dsn, slto=place.slot)
    with pytest.raises(AnalysisException, match="option 'slto' is unknown; did you mean 'slot'"):
        rows.load()


def test_settings_that_number_events_cannot_change_under_a_checkpoint(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    query = start()
    place.sql("insert into item values (1, 1, 'x')")
    wait_for(lambda: count(kinesis, stream) == 1 or query.exception(), "it has arrived")
    query.stop()
    other = start({"markers": "true"})
    wait_for(lambda: not other.isActive, "the query has ended")
    assert "made with splitKeyChanges=false markers=false publications=" in str(other.exception())


def test_a_slot_that_somebody_else_has_moved_is_a_loss_told_loudly(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    query = start()
    place.sql("insert into item values (1, 1, 'x')")
    wait_for(lambda: count(kinesis, stream) == 1 or query.exception(), "it has arrived")
    query.stop()
    wait_for(lambda: not place.is_read(), "the slot is given back")
    place.sql(
        "insert into item values (2, 1, 'x')",
        f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())",
    )
    other = start()
    wait_for(lambda: not other.isActive, "the query has ended")
    assert "was acknowledged by somebody else" in str(other.exception())
    assert "drop the slot" in str(other.exception())
