"""The reader of `postgres_wal` as Spark calls it, without Spark: what it passes over, and when the slot is told."""

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from strandline.cdc.acknowledged import acknowledge, acknowledged, create_acknowledged_table
from strandline.cdc.changes import Changes
from strandline.cdc.keeper import Keeper
from strandline.cdc.lease import create_lease_table
from strandline.cdc.session import Session
from strandline.cdc.slot import SlotIdentity, identified
from strandline.errors import ChangesLost
from strandline.spark import postgres_wal
from strandline.spark.postgres_wal import PostgresWal, WalReader
from strandline.spark.wal_options import WalOptions
from strandline.stack.postgres import Postgres
from strandline.wire.pgoutput import lsn_text
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for

LIMIT = ReadAllAvailable()


@pytest.fixture
def place(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    # They are for processes of Spark.
    monkeypatch.setattr(postgres_wal, "settle", lambda: None)
    monkeypatch.setattr(postgres_wal, "stay_supervised", lambda _: None)
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


def test_a_transaction_that_is_cut_behind_an_idle_advance_does_not_set_the_mark_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One that comes would be read as far as it is, as a transaction is.
    monkeypatch.setattr(Keeper, "beat", lambda _, end: None)
    query = Query(place, idleEvery="100ms", maxRowsPerEpoch="3")
    query.start()
    place.sql("create table other as select generate_series(1, 1000)")
    end = log_end(place)
    query.until(lambda: place.confirmed() >= end, "the slot has moved on though nothing of ours was written")
    place.sql("insert into item select generate_series(1, 8)")
    query.until(lambda: query.delivered, "the first of it is delivered")
    assert query.delivered == item(1, 2, 3)
    # Who reads on from here finds the slot where it was told to be, and nothing lost.
    query.stop()
    query.start()
    query.until_last(8)
    query.stop()
    assert query.delivered == item(*range(1, 9))
    ends = [mark["end"] for mark in query.planned]
    assert ends == sorted(ends)


def test_a_message_that_was_taken_back_in_a_large_transaction_is_no_event_and_numbers_none(place: Place) -> None:
    dsn = f"{place.dsn}?options=-c%20logical_decoding_work_mem%3D64kB"
    query = Query(place, dsn=dsn, maxRowsPerEpoch="700")
    query.start(leadership="1")
    place.in_one(
        "insert into item select generate_series(1, 1000)",
        "select pg_logical_emit_message(true, 'kept', 'x')",
        "savepoint a",
        "select pg_logical_emit_message(true, 'taken back', 'x')",
        "insert into item select generate_series(1001, 2000)",
        "rollback to savepoint a",
        "insert into item select generate_series(2001, 3000)",
    )
    query.until(lambda: query.delivered, "a part is delivered")
    wait_for(query.plan, "the next part is planned, and never delivered")
    query.stop()
    query.start(leadership="2")
    query.until_last(3000)
    assert query.delivered == [*item(*range(1, 1001)), "message/kept", *item(*range(2001, 3001))]
    query.stop()


@pytest.mark.parametrize("leaves_an_epoch", [False, True])
def test_a_key_that_is_another_by_now_numbers_no_event_of_before_otherwise(
    place: Place, *, leaves_an_epoch: bool
) -> None:
    place.sql("create table pair (id int primary key, other int)", "alter table pair replica identity full")
    place.sql(f"alter publication {place.publication} add table pair")
    place.sql("insert into pair select n, n from generate_series(1, 4) n")
    # Of the key that there is now, each update is two events; of the one that comes it would be one.
    place.sql("update pair set id = id + 10")
    query = Query(place, splitKeyChanges="true", maxRowsPerEpoch="2")
    query.start()
    query.until(lambda: len(query.delivered) == 6, "a part of the updates is delivered")
    if leaves_an_epoch:
        wait_for(query.plan, "the next part is planned, and never delivered")
    query.stop()
    place.sql("alter table pair drop constraint pair_pkey, add primary key (other)")
    query.start()
    query.until(lambda: len(query.delivered) >= 12, "all is delivered")
    assert sorted(query.delivered[4:]) == sorted(f"public.pair/{n}" for n in (1, 2, 3, 4, 11, 12, 13, 14))
    query.stop()
    query.start()
    place.sql("update pair set id = id + 10, other = other + 20 where other = 1")
    query.until(lambda: len(query.delivered) >= 14, "it goes on")
    assert query.delivered[12:] == ["public.pair/1", "public.pair/21"]
    query.stop()


def test_a_publication_that_has_less_by_now_numbers_no_event_of_before_otherwise(place: Place) -> None:
    query = Query(place, maxRowsPerEpoch="2")
    query.start()
    place.sql("insert into item select generate_series(1, 6)")
    query.until(lambda: len(query.delivered) == 2, "a part is delivered")
    query.stop()
    place.sql(f"alter publication {place.publication} set table item where (id > 4)")
    query.start()
    # Postgres goes by what the publication was when the rows were written.
    query.until_last(6)
    assert query.delivered == item(1, 2, 3, 4, 5, 6)
    place.sql("insert into item values (-1), (7)")
    query.until_last(7)
    assert query.delivered[6:] == item(7)
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
        query.until(lambda: False, "it stops")
    assert "was acknowledged by somebody else" in str(error.value)
    assert "the checkpoint's directory and the slot's row of strandline.acknowledged" in str(error.value)
    with pytest.raises(ChangesLost, match="was acknowledged by somebody else"):
        Query(place).start(leadership="3")


def test_what_another_leader_acknowledges_while_the_slot_is_looked_at_is_no_loss(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(place)
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until_last(1)
    query.until(lambda: noted(place) >= query.planned[-1]["end"], "and it is acknowledged")
    query.stop()
    place.sql("insert into item values (2)")
    before = acknowledged

    def read_just_before(session: Session, identity: SlotIdentity) -> int | None:
        found = before(session, identity)
        # The other has delivered the second, and tells first the row and then the slot.
        acknowledge(session, identity, log_end(place), 1)
        place.sql(f"select pg_replication_slot_advance('{place.slot}', '{lsn_text(noted(place))}')")
        monkeypatch.setattr(postgres_wal, "acknowledged", before)
        return found

    monkeypatch.setattr(postgres_wal, "acknowledged", read_just_before)
    query.start(leadership="2")
    query.turn()
    place.sql("insert into item values (3)")
    query.until_last(3)
    assert query.delivered == item(1, 3)
    query.stop()


@pytest.mark.parametrize("leaves_an_epoch", [False, True])
def test_a_slot_that_is_moved_after_it_was_looked_at_and_before_it_is_taken_stops_it_too(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, leaves_an_epoch: bool
) -> None:
    query = Query(place)
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until_last(1)
    place.sql("insert into item values (2)")
    if leaves_an_epoch:
        wait_for(query.plan, "an epoch is planned, and never delivered")
    query.stop()

    def moved(*given: Any) -> Changes:
        place.sql(f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())")
        return Changes(*given)

    monkeypatch.setattr(postgres_wal, "Changes", moved)
    with pytest.raises(ChangesLost, match="was acknowledged by somebody else"):
        query.start(leadership="2")
        query.until(lambda: False, "it stops")
    assert query.delivered == item(1)
    query.stop()


def test_a_standby_with_the_same_checkpoint_begins_behind_the_last_epoch_though_the_slot_lags(place: Place) -> None:
    query = Query(place)
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until(lambda: query.delivered, "it is delivered")
    query.stop()
    assert place.confirmed() < query.planned[-1]["end"]
    query.start(leadership="2")
    place.sql("insert into item values (2)")
    query.until_last(2)
    assert query.delivered == item(1, 2)
    query.stop()


def test_its_making_opens_nothing_and_one_connection_serves_all_epochs(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        raw = {"dsn": f"postgresql://x@127.0.0.1:{listener.getsockname()[1]}/x", "slot": "s", "publications": "p"}
        reader = PostgresWal(raw).streamReader(StructType())
        assert isinstance(pickle.loads(pickle.dumps(reader)), WalReader)  # noqa: S301  (our own)
        with pytest.raises(BlockingIOError):
            listener.accept()
    query = Query(place)
    query.start()
    readers = set[object]()
    for id_ in range(3):
        place.sql(f"insert into item values ({id_})")
        query.until_last(id_)
        readers |= set(place.sql(f"select active_pid from pg_replication_slots where slot_name = '{place.slot}'"))
    assert len(readers) == 1
    query.stop()


def test_the_slot_is_not_told_before_the_row_is_written(place: Place) -> None:
    query = Query(place, idleEvery="100ms")
    query.start(leadership="1")
    place.sql("insert into item values (1)")
    query.until(lambda: query.delivered, "it is delivered")
    # What was told before is not on its way any more.
    wait_for(lambda: place.confirmed() >= noted(place), "the slot is told")
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
