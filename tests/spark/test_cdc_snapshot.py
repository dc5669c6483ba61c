"""Rows that were there before the slot, and what is written meanwhile, while leaders and workers are killed."""

import json
import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from strandline.cdc.assembly import Offset
from strandline.cdc.changes import Changes
from strandline.cdc.config import CdcConfig
from strandline.cdc.fence import Fence
from strandline.cdc.figures import Figures, Listening
from strandline.cdc.lease import acquire
from strandline.cdc.session import Session, parse_lsn
from strandline.cdc.snapshot import HeldSnapshot
from strandline.cdc.snapshot_record import snapshot_state
from strandline.cli.cdc import prepare, take_slot
from strandline.config import load
from strandline.errors import SnapshotLost
from strandline.spark import pipeline
from strandline.spark.kinesis import in_order, sender_of
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.pipeline import send_rows
from strandline.spark.snapshot import Snapshot
from strandline.spark.wal_options import WalOptions
from strandline.stack import Kinesis, Refuse, Throttle
from strandline.stack.postgres import Postgres
from tests.cdc.instances import Instance, family, running, signal_all
from tests.cdc.support import Place
from tests.spark.cluster import command, parent
from tests.support import TIMEOUT, run_strandline, wait_for

ROWS = 2_500
PATIENCE = 6 * TIMEOUT
# Two rows in a block, so that there are several chunks.
TABLES = (
    "create table item (id int primary key, version int not null, note text) with (fillfactor = 10)",
    f"insert into item select n, 0, repeat('x', 300) from generate_series(1, {ROWS}) n",
    "create table bare (id int primary key)",
)

log = logging.getLogger(__name__)

Shards = list[list[dict[str, Any]]]


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    with Place(postgres) as place:
        place.sql(*TABLES)
        yield place


@pytest.fixture
def config(spark: SparkSession, place: Place, kinesis: Kinesis, tmp_path: Path) -> Path:
    """Also for the session of the tests, which has credentials and nothing else in its environment."""
    client = boto3.client("kinesis", endpoint_url=kinesis.endpoint, region_name="us-east-1")
    client.create_stream(StreamName=place.name, ShardCount=3)
    file = tmp_path / "cdc.yaml"
    file.write_text(f"""\
postgres: {{dsn: '{place.dsn}', slot: {place.slot}, create: {{tables: [item, bare]}}}}
kinesis: {{stream: {place.name}, region: us-east-1, endpoint_url: '{kinesis.endpoint}'}}
# It outlasts a machine that stalls: only a leader that was killed is followed.
leadership: {{lease_s: 60}}
spark: {{frozen_after_s: 6}}
checkpoint: {tmp_path / "checkpoint"}
""")
    return file


@contextmanager
def writing(place: Place, seed: int) -> Iterator[Callable[[], None]]:
    """Somebody updates, deletes, and inserts again, until told to rest."""
    stop, chance = threading.Event(), random.Random(seed)

    def write() -> None:
        with psycopg.connect(place.dsn, autocommit=True) as database:
            while not stop.wait(0.01):
                key = chance.randrange(2 * ROWS)
                if chance.random() < 0.3:
                    database.execute("delete from item where id = %s", (key,))
                else:
                    database.execute(
                        "insert into item values (%s, 1, 'new') on conflict (id) do update "
                        "set version = item.version + 1, note = 'changed'",
                        (key,),
                    )

    def rest() -> None:
        stop.set()
        thread.join(TIMEOUT)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield rest
    finally:
        rest()


def events(kinesis: Kinesis, place: Place) -> Shards:
    """Of each shard, in order."""
    shards = kinesis.records(place.name).values()
    found = [[json.loads(record.data) for record in shard] for shard in shards]
    for event in (event for shard in found for event in shard):
        event["id"] = (parse_lsn(event["source"]["lsn"]), event["source"]["ordinal"])
        del event["leadership"]
    return found


def arrived(kinesis: Kinesis, place: Place) -> int:
    return kinesis.counts(place.name).records


def is_finished(place: Place) -> bool:
    with Session(place.dsn) as session:
        found = snapshot_state(session, place.slot)
    return found is not None and found.finished is not None


def workers(leader: Instance) -> list[int]:
    """The Python processes in which tasks of an instance run: those that come from another of their kind."""
    kind = "pyspark.daemon pyspark.worker"
    return [pid for pid in family(leader.process.pid) if kind in command(pid) and kind in command(parent(pid))]


def all_watched(processes: list[int]) -> list[int]:
    """The same, where each of them has a supervisor; else none."""
    watched = all(any(" -I -S -c " in command(each) for each in family(pid)) for pid in processes)
    return processes if watched else []


def instance_of(config: Path, kinesis: Kinesis, told: Path) -> Instance:
    program = ("-m", "strandline", "cdc", "run", "--config", str(config))
    return Instance(program, told, kinesis.settings())


@pytest.mark.timeout(1200)
def test_after_snapshot_and_stream_the_events_of_every_key_give_the_table_whoever_was_killed_or_frozen(
    spark: SparkSession, place: Place, kinesis: Kinesis, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.info("seed %d", seed)
    # Of each of three shards, so that all rows take 20 s: the first leader is killed before it has sent them.
    slow, still = Throttle(records_per_s=40), Refuse(code="InternalFailure")
    kinesis.set_faults(place.name, slow)
    told = config.with_name("first.log")
    with running(lambda: instance_of(config, kinesis, told), 1) as (first,), writing(place, seed) as rest:
        wait_for(lambda: arrived(kinesis, place) > 100, "rows arrive", PATIENCE)
        kinesis.set_faults(place.name, still)
        os.kill(wait_for(lambda: workers(first), "a task has a process")[0], signal.SIGKILL)
        before = arrived(kinesis, place)
        kinesis.set_faults(place.name, slow)
        wait_for(lambda: arrived(kinesis, place) > before + 200, "rows arrive again", PATIENCE)
        kinesis.set_faults(place.name, still)
        signal_all(wait_for(lambda: all_watched(workers(first)), "each has a supervisor"), signal.SIGSTOP)
        before = arrived(kinesis, place)
        kinesis.set_faults(place.name, slow)
        wait_for(lambda: arrived(kinesis, place) > before + 200, "rows arrive from others", PATIENCE)
        kinesis.set_faults(place.name, still)
        assert "snapshot      under way since" in run_strandline("cdc", "status", "--config", config).stdout
        first.end(signal.SIGKILL)
        # As if its lease had run out, but for what its tasks may still send.
        place.sql("update strandline.lease set expires = greatest(granted, clock_timestamp()), version = version + 1")
        assert not is_finished(place)
        kinesis.set_faults(place.name)
        follow(spark, place, config, rest)
    assert "was lost before it was finished (1 of 2 tables" in capfd.readouterr().err
    assert "snapshot      finished" in run_strandline("cdc", "status", "--config", config).stdout
    found = events(kinesis, place)
    for shard in found:
        ops = "".join(event["op"] for event in shard)
        assert ops == "r" * ops.count("r") + ops.lstrip("r"), "a row of the snapshot comes after a change"
    table = dict(place.sql("select id, version from item"))
    assert by_arrival(found) == table
    assert by_id(found) == table
    points = {event["id"][0] for shard in found for event in shard if event["op"] == "r"}
    assert len(points) == 2, "both leaders have sent rows"


def follow(spark: SparkSession, place: Place, file: Path, rest: Callable[[], None]) -> None:
    """Lead next, as the command does: the snapshot in the session of the tests, and then all changes as one epoch."""
    config = load(file, CdcConfig)
    long = timedelta(seconds=TIMEOUT)
    leadership = acquire(place.dsn, config.lease_name, "next", wait=long, term=long)
    assert leadership is not None
    with leadership:
        held = take_slot(config, leadership)
        assert held is not None
        with held:
            Snapshot(spark.sparkContext, config, held, leadership).send(threading.Event(), log.info)
        rest()
        end = place.sql("select (pg_current_wal_flush_lsn() - '0/0')::bigint")[0][0]
        settings = WalOptions.parse(config.source_options(1)).changes(place.name, {})
        sink = SinkOptions.parse(config.sink_options(leadership.number))
        with (
            Changes(settings, Offset(end=place.confirmed())) as changes,
            Fence(place.dsn, config.lease_name, leadership.number, 0, 0, grant=long) as fence,
        ):
            sender_of(sink).send(in_order(up_to(changes, end)), leadership=leadership.number, fence=fence)


def test_when_a_table_is_emptied_meanwhile_the_same_leader_goes_on_under_another_snapshot(
    spark: SparkSession, place: Place, kinesis: Kinesis, config: Path
) -> None:
    settings, told = load(config, CdcConfig), list[str]()
    prepare(settings)
    place.sql("insert into bare values (1)")
    leadership = acquire(place.dsn, settings.lease_name, "test", wait=timedelta(seconds=TIMEOUT))
    assert leadership is not None
    with leadership:
        held = take_slot(settings, leadership)
        assert held is not None
        first = held.view.point
        place.sql("truncate item", "insert into item select n, 1, '' from generate_series(1, 20) n")
        heard: list[Figures] = []
        with Listening(heard.append) as listening:
            figures, stop = listening.place, threading.Event()
            send_rows(spark.sparkContext, settings, held, leadership, stop, say=told.append, figures=figures)
            wait_for(lambda: sum(each.records for each in heard) == 21, "what was delivered is told")
        assert {each.epoch for each in heard} == {None}
    assert 'item" was rewritten while it was read for the snapshot; the tables' in told[0]
    assert is_finished(place)
    found = [event for shard in events(kinesis, place) for event in shard]
    rows = {(event["source"]["table"], event["after"]["id"]): event["id"][0] for event in found}
    assert rows.keys() == {("bare", 1), *(("item", n) for n in range(1, 21))}
    assert rows["item", 1] > first


def test_a_snapshot_that_is_lost_again_and_again_is_given_up(
    spark: SparkSession, place: Place, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, told, tries = load(config, CdcConfig), list[str](), list[object]()

    class Lost:
        def __init__(self, _context: object, _config: object, held: HeldSnapshot, _leadership: object) -> None:
            tries.append(held.tables(settings.postgres.publication))

        def send(self, *_: object) -> None:
            raise PySparkException("strandline.errors.SnapshotLost: a table was rewritten\n")

    monkeypatch.setattr(pipeline, "Snapshot", Lost)
    prepare(settings)
    leadership = acquire(place.dsn, settings.lease_name, "test", wait=timedelta(seconds=TIMEOUT))
    assert leadership is not None
    with leadership:
        held = take_slot(settings, leadership)
        assert held is not None
        with pytest.raises(SnapshotLost, match="a table was rewritten"):
            send_rows(spark.sparkContext, settings, held, leadership, threading.Event(), say=told.append)
    assert len(tries) == len(told) + 1 == pipeline.MOST_FAILURES + 1


def up_to(changes: Changes, end: int) -> Iterator[pa.RecordBatch]:
    """The rows of a slot until the log is read so far."""
    reached = 0
    while reached < end:
        taken = changes.take(1.0)
        if taken is not None:
            yield from taken.batches
        reached = changes.idle_at() or 0


def by_arrival(shards: Shards) -> dict[int, int]:
    """What a reader has who takes everything as it comes, repeats too."""
    rows: dict[int, int] = {}
    for event in (event for shard in shards for event in shard):
        if event["op"] == "d":
            rows.pop(event["before"]["id"], None)
        else:
            rows[event["after"]["id"]] = event["after"]["version"]
    return rows


def by_id(shards: Shards) -> dict[int, int]:
    """What a reader has who keeps the highest id of each key. A repeat must be the same event."""
    last: dict[int, dict[str, Any]] = {}
    seen: dict[tuple[int, int], dict[str, Any]] = {}
    for event in (event for shard in shards for event in shard):
        assert seen.setdefault(event["id"], event) == event, "a repeat is not the same event"
        key = (event["after"] or event["before"])["id"]
        if key not in last or event["id"] > last[key]["id"]:
            last[key] = event
    return {key: event["after"]["version"] for key, event in last.items() if event["op"] != "d"}
