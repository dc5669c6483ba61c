"""The reader of `postgres_wal` as Spark calls it, without Spark: what it passes over, and when the slot is told."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.cdc.acknowledged import acknowledge, create_acknowledged_table
from strandline.cdc.lease import create_lease_table
from strandline.cdc.session import Session
from strandline.cdc.slot import identified
from strandline.errors import ChangesLost
from strandline.spark import postgres_wal
from strandline.spark.postgres_wal import WalReader
from strandline.spark.wal_options import WalOptions
from strandline.stack.postgres import Postgres
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for

LIMIT = ReadAllAvailable()


@pytest.fixture
def place(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # It is for processes of Spark.
    monkeypatch.setattr(postgres_wal, "settle", lambda: None)
    with Place(postgres) as place:
        place.prepare("create table item (id int primary key)", published="table item")
        with Session(place.dsn) as session:
            create_lease_table(session)
            create_acknowledged_table(session)
        yield place


class Query:
    """A query of Spark as far as a source sees one: epochs are planned, noted, delivered, noted as done."""

    def __init__(self, place: Place, **options: str) -> None:
        self._raw = {"dsn": place.dsn, "slot": place.slot, "publications": place.publication, **options}
        self._place = place
        self.planned: list[dict[str, Any]] = []
        """The checkpoint: each end of an epoch."""
        self.done = 0
        self.delivered: list[str] = []
        self.reader = WalReader(WalOptions.parse(self._raw))

    def start(self, **options: str) -> None:
        """Once more from the checkpoint; an epoch that is not done is read again first."""
        self.reader = WalReader(WalOptions.parse({**self._raw, **options}))
        if not self.planned:
            self.planned.append(self.reader.initialOffset())
            self.done = 1
        elif self.done < len(self.planned):
            self.deliver()

    def plan(self) -> bool:
        """Plan the next epoch; whether there is one."""
        start = self.planned[-1]
        end = self.reader.latestOffset(start, LIMIT)
        if end != start:
            self.planned.append(end)
        return end != start

    def deliver(self) -> None:
        """Read and deliver the epoch that is planned."""
        for partition in self.reader.partitions(*self.planned[-2:]):
            for batch in self.reader.read(partition):
                self.delivered += batch["partition_key"].to_pylist()
        self.done = len(self.planned)

    def turn(self) -> None:
        if self.plan():
            self.deliver()

    def until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> bool:
            self.turn()
            return bool(condition())

        wait_for(holds, what)

    def until_last(self, id_: int) -> None:
        self.until(lambda: self.delivered[-1:] == item(id_), f"item {id_} is delivered")

    def stop(self) -> None:
        self.reader.stop()
        wait_for(lambda: not self._place.is_read(), "the slot is given back")


def item(*ids: int) -> list[str]:
    return [f"public.item/{id_}" for id_ in ids]


def noted(place: Place) -> int:
    rows = place.sql("select (lsn - '0/0')::bigint from strandline.acknowledged")
    return int(rows[0][0]) if rows else 0


def log_end(place: Place) -> int:
    return int(place.sql("select (pg_current_wal_insert_lsn() - '0/0')::bigint")[0][0])


@pytest.mark.parametrize("leaves_an_epoch", [False, True])
def test_a_standby_with_a_checkpoint_of_its_own_goes_on_behind_what_another_leader_delivered(
    place: Place, *, leaves_an_epoch: bool
) -> None:
    own, other = Query(place), Query(place)
    own.start(leadership="1")
    place.sql("insert into item values (1)")
    own.until(lambda: own.delivered, "it is delivered")
    if leaves_an_epoch:
        place.sql("insert into item values (2)")
        wait_for(own.plan, "an epoch is planned, and never delivered")
    own.stop()

    other.start(leadership="2")
    place.sql("insert into item values (3)")
    end = log_end(place)
    other.until(lambda: place.confirmed() >= end, "the slot is told")
    other.stop()
    assert set(other.delivered) >= {*item(3), *(item(2) if leaves_an_epoch else ())}
    assert noted(place) >= place.confirmed()

    place.sql("insert into item values (4)")
    own.start(leadership="3")
    own.until(lambda: own.delivered[-1:] == item(4), "it goes on")
    assert own.delivered == item(1, 4)
    own.stop()


def test_an_epoch_of_which_another_leader_delivered_a_part_is_read_from_there(place: Place) -> None:
    beside = f"{place.slot}_b"
    place.sql(f"select pg_create_logical_replication_slot('{beside}', 'pgoutput')")
    own, scout = Query(place), Query(place, slot=beside, maxRowsPerEpoch="1")
    own.start()
    scout.start()
    for id_ in (1, 2, 3):
        place.sql(f"insert into item values ({id_})")
    scout.until(lambda: scout.delivered == item(1, 2, 3), "where each ends is known")
    scout.reader.stop()
    # One epoch of all three is planned, and the first of them is delivered by another.
    first, last = ({**scout.planned[at], "slot": place.slot} for at in (1, -1))
    own.planned.append(last)
    with Session(place.dsn) as session:
        acknowledge(session, identified(session, place.slot)[0], first["end"], 2)
    own.start(leadership="3")
    assert own.delivered == item(2, 3)


def test_a_transaction_that_was_cut_is_read_again_though_all_before_its_commit_is_acknowledged(place: Place) -> None:
    query = Query(place, maxRowsPerEpoch="1")
    query.start(leadership="1")
    for id_ in range(1, 100, 3):
        with psycopg.connect(place.dsn) as large:
            large.execute("insert into item values (%s), (%s)", (id_ + 1, id_ + 2))
            place.sql(f"insert into item values ({id_})")
            large.commit()
        query.until_last(id_)
        wait_for(query.plan, "a part of the second is planned")
        if query.planned[-1]["end"] == query.planned[-1]["lsn"]:
            break
        # Somebody else has written to the log between the two commits.
        query.deliver()
        query.until_last(id_ + 2)
    assert query.planned[-1]["end"] == query.planned[-1]["lsn"] == noted(place)
    query.stop()
    query.start(leadership="1")
    assert query.delivered[-1:] == item(id_ + 1)
    query.until_last(id_ + 2)
    query.stop()


def test_a_slot_beyond_both_the_checkpoint_and_the_row_stops_it_loudly(place: Place) -> None:
    query = Query(place)
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until(lambda: noted(place) and query.delivered, "it is delivered, and the row is there")
    query.until(lambda: noted(place) >= query.planned[-1]["end"], "and it tells of it")
    query.stop()
    place.sql("insert into item values (2)")
    place.sql(f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())")
    query.start(leadership="2")
    with pytest.raises(ChangesLost) as error:
        query.turn()
    assert "was acknowledged by somebody else" in str(error.value)
    assert "delete the checkpoint and the slot's row of strandline.acknowledged" in str(error.value)
    with pytest.raises(ChangesLost, match="was acknowledged by somebody else"):
        Query(place).start(leadership="3")


def test_the_slot_is_not_told_before_the_row_is_written(place: Place) -> None:
    query = Query(place, idleEvery="100ms")
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until(lambda: query.delivered, "it is delivered")
    before = place.confirmed()
    waits = "select 1 from pg_locks where relation = 'strandline.acknowledged'::regclass and not granted"
    with psycopg.connect(place.dsn) as holder:
        holder.execute("lock table strandline.acknowledged in exclusive mode")
        planning = threading.Thread(target=query.plan)
        planning.start()
        wait_for(lambda: place.sql(waits), "the row is waited for")
        assert place.confirmed() == before
    planning.join(TIMEOUT)
    query.until(lambda: place.confirmed() > before, "the slot is told")
    assert noted(place) >= place.confirmed()
    query.stop()


def test_while_tables_rest_the_slot_moves_on_by_heartbeats_that_are_no_events(place: Place) -> None:
    witness = f"{place.slot}_w"
    place.sql(f"select pg_create_logical_replication_slot('{witness}', 'pgoutput')")
    beats = (
        f"select 1 from pg_logical_slot_peek_binary_changes('{witness}', null, null, 'proto_version', '1', "
        f"'publication_names', '{place.publication}', 'messages', 'true') "
        "where position('strandline.heartbeat'::bytea in data) > 0"
    )
    query = Query(place, idleEvery="100ms")
    query.start()
    with psycopg.connect(place.server.url, autocommit=True) as elsewhere:
        elsewhere.execute("create temporary table busy as select generate_series(1, 100)")
    query.until(lambda: place.sql(beats), "a heartbeat is written")
    end = log_end(place)
    query.until(lambda: place.confirmed() >= end, "the slot moves on")
    assert query.delivered == []
    query.stop()
