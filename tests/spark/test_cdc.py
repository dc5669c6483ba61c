"""Changes of a real Postgres in a Kinesis stream, through the source and the sink, in one session of Spark."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.cdc.acknowledged import create_acknowledged_table
from strandline.cdc.lease import create_lease_table
from strandline.cdc.session import Session
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


def test_a_standby_with_a_checkpoint_of_its_own_goes_on_behind_what_another_leader_delivered(
    kinesis: Kinesis, place: Place, stream: str, start: Start, tmp_path: Path
) -> None:
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_acknowledged_table(session)
    own, other = ({"checkpointLocation": str(tmp_path / name)} for name in ("own", "other"))
    query = start({"leadership": "1"}, own)
    place.sql("insert into item values (1, 1, 'x')")
    wait_for(lambda: count(kinesis, stream) == 1 or query.exception(), "it has arrived")
    # An epoch that is planned and not delivered stays in its checkpoint.
    kinesis.set_faults(stream, Refuse(code="AccessDeniedException"))
    place.sql("insert into item values (2, 1, 'x')")
    wait_for(lambda: not query.isActive, "the query has ended")
    kinesis.set_faults(stream)

    second = start({"leadership": "2"}, other)
    place.sql("insert into item values (3, 1, 'x')")
    (end,) = place.sql("select (pg_current_wal_insert_lsn() - '0/0')::bigint")[0]
    place.sql("insert into item values (4, 1, 'x')")
    wait_for(lambda: place.confirmed() >= end or second.exception(), "the slot is told")
    second.stop()
    wait_for(lambda: not place.is_read(), "the slot is given back")
    (kept,) = place.sql("select (lsn - '0/0')::bigint from strandline.acknowledged")[0]
    assert kept >= place.confirmed()
    before = count(kinesis, stream)

    place.sql("insert into item values (5, 1, 'x')")
    third = start({"leadership": "3"}, own)
    wait_for(lambda: count(kinesis, stream) > before or third.exception(), "it has arrived")
    assert third.exception() is None
    assert {event["after"]["id"] for event in events(kinesis, stream)} == {1, 2, 3, 4, 5}
    third.stop()
    wait_for(lambda: not place.is_read(), "the slot is given back")

    # Beyond both the checkpoint and the row nothing is known to be delivered.
    place.sql("insert into item values (6, 1, 'x')")
    place.sql(f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())")
    for checkpoint in (own, {"checkpointLocation": str(tmp_path / "new")}):
        last = start({"leadership": "4"}, checkpoint)
        wait_for(lambda query=last: not query.isActive, "the query has ended")  # type: ignore[misc]
        assert "was acknowledged by somebody else" in str(last.exception())
        assert "row of strandline.acknowledged" in str(last.exception())


def test_the_slot_is_not_told_before_the_row_is_written(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_acknowledged_table(session)
    waits = "select from pg_locks where relation = 'strandline.acknowledged'::regclass and not granted"
    with psycopg.connect(place.dsn) as holder:
        holder.execute("lock table strandline.acknowledged in exclusive mode")
        query = start({"leadership": "1", "idleEvery": "200ms"})
        before = place.confirmed()
        place.sql("insert into item values (1, 1, 'x')")
        wait_for(lambda: count(kinesis, stream) == 1 or query.exception(), "it has arrived")
        wait_for(lambda: place.sql(waits) or query.exception(), "the row is waited for")
        assert place.confirmed() == before
    wait_for(lambda: place.confirmed() > before or query.exception(), "the slot is told")
    assert query.exception() is None


def test_while_tables_rest_the_slot_moves_on_by_heartbeats_that_are_no_events(
    kinesis: Kinesis, place: Place, stream: str, start: Start
) -> None:
    witness = f"{place.slot}_w"
    place.sql(f"select pg_create_logical_replication_slot('{witness}', 'pgoutput')")
    query = start({"idleEvery": "200ms"})
    beats = (
        f"select from pg_logical_slot_peek_binary_changes('{witness}', null, null, 'proto_version', '1', "
        f"'publication_names', '{place.publication}', 'messages', 'true') "
        "where position('strandline.heartbeat'::bytea in data) > 0"
    )

    def has_beaten() -> bool:
        with psycopg.connect(place.server.url, autocommit=True) as elsewhere:
            elsewhere.execute("create temporary table busy as select generate_series(1, 100)")
        return bool(place.sql(beats)) or query.exception() is not None

    wait_for(has_beaten, "a heartbeat is written")
    (end,) = place.sql("select (pg_current_wal_flush_lsn() - '0/0')::bigint")[0]
    wait_for(lambda: place.confirmed() >= end or query.exception(), "the slot moves on")
    assert query.exception() is None
    assert count(kinesis, stream) == 0


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
    assert "made with splitKeyChanges=false markers=false, and now it is" in str(other.exception())


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
