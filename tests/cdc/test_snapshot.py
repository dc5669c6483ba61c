"""Reading a snapshot of real tables: which rows, as which events, under which ids, and when it has to begin anew."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strandline.cdc.acknowledged import acknowledge, create_acknowledged_table
from strandline.cdc.assembly import Assembly, Offset
from strandline.cdc.chunk import read_chunk
from strandline.cdc.config import CdcConfig, KinesisSection, PostgresSection
from strandline.cdc.lease import Leadership, acquire, create_lease_table
from strandline.cdc.published import Chunk, chunks
from strandline.cdc.session import Session
from strandline.cdc.slot import NewSlot, create_slot, heartbeat, identified
from strandline.cdc.snapshot import HeldSnapshot, left_to_read, make_slot, take_again
from strandline.cdc.snapshot_record import SnapshotRecord, snapshot_state
from strandline.cli.cdc import take_slot
from strandline.config import Secret
from strandline.errors import CannotReplicate, ChangesLost, NotLeading, PostgresError, SnapshotLost
from strandline.wire.change import Events
from strandline.wire.event import EventFormat
from tests.cdc.support import Place
from tests.support import TIMEOUT, wait_for

FORMAT = EventFormat(database="shop")
LEASE = "lease"
TYPES = (
    "create type mood as enum ('sad', 'happy')",
    "create domain positive as int check (value > 0)",
    "create domain more as positive",
    "create type pair as (a int, b text)",
    """create table kinds (id bigint primary key, gone int, small smallint, yes boolean, r real, d double precision,
        n numeric, t text, c char(4), v varchar(9), b bytea, day date, at timestamp, tz timestamptz, j json, jb jsonb,
        u uuid, m mood, p positive, q more, i interval, nums int[], texts text[], jsons jsonb[], moods mood[], pr pair,
        twice bigint generated always as (id * 2) stored, "odd ""name" text)""",
    "alter table kinds drop column gone",
    "alter table kinds add column late text default 'later'",
)
ROWS = r"""
    insert into kinds (id, small, yes, r, d, n, t, c, v, b, day, at, tz, j, jb, u, m, p, q, i, nums, texts, jsons,
        moods, pr, "odd ""name") values
    (1, 1, true, 1.5, 'NaN', 'Infinity', E'tab\there, \\ back, line\nfeed\r\v\f\b, \\N, ü', 'ab', '', '\x00ff09',
        '2026-11-16', '2026-11-16 09:17:43.5', '2026-11-16 09:17:43.5+02', '{"a": null}', '[1.0, "x\ty"]',
        '0e37df36-f698-11e6-8dd4-cb9ced3df976', 'happy', 7, 8, '1 day 02:00', '{{1,null},{2,3}}',
        E'{a,"b\\tc","d,e",null}',
        array['null'::jsonb, '{}'], '{sad,happy}', '(1,"x y")', E'\\N'),
    (2, null, null, null, '-Infinity', 'NaN', null, null, null, null, 'infinity', '-infinity', '0044-03-15 BC', 'null',
        'null', null, null, null, null, null, '{}', '[0:1]={a,b}', '{}', '{}', '(,)', '')"""


@contextmanager
def held(place: Place, name: str = "") -> Iterator[HeldSnapshot]:
    with (
        create_slot(place.dsn, name or f"{place.slot}_read", temporary=True) as made,
        HeldSnapshot(place.dsn, made) as it,
    ):
        yield it


def parts(place: Place, snapshot: HeldSnapshot, most: int = 1) -> list[Chunk]:
    return chunks(snapshot.tables(place.publication), most)


def read(place: Place, snapshot: HeldSnapshot, chunk: Chunk) -> list[dict[str, Any]]:
    batches = read_chunk(place.dsn, snapshot.view, chunk, FORMAT)
    return [row for batch in batches for row in batch.to_pylist()]


def read_all(place: Place, snapshot: HeldSnapshot, most: int = 1) -> list[dict[str, Any]]:
    return [row for chunk in parts(place, snapshot, most) for row in read(place, snapshot, chunk)]


def streamed(place: Place) -> list[dict[str, Any]]:
    """The events of the slot up to now."""
    with Session(place.dsn) as session:
        end = heartbeat(session, beyond=0) or 0
    reader = Assembly(Events(FORMAT), Offset())
    found = []
    with place.replication() as replication:
        replication.start(0)
        while reader.reached.end < end:
            reader.feed(replication.take(0.5))
            while (batch := reader.batch()) is not None:
                found += [json.loads(event.event) | {"key": event.partition_key}
                          for part in batch.parts for event in part.events]  # fmt: skip
    return found


def test_a_row_is_the_same_event_whether_a_snapshot_reads_it_or_the_stream(either: Place) -> None:
    either.prepare(*TYPES)
    either.sql(ROWS)
    with held(either) as snapshot:
        rows = read_all(either, snapshot)
        assert {row["lsn"] for row in rows} == {snapshot.view.point}
    events = [json.loads(row["event"]) | {"key": row["partition_key"]} for row in rows]
    changes = streamed(either)
    assert len(events) == len(changes) == 2
    for event, change in zip(events, changes, strict=True):
        assert (event["op"], change["op"]) == ("r", "c")
        assert event["source"]["xid"] is None
        for own in ("op", "ts", "source"):
            del event[own], change[own]
        assert event == change


def test_what_is_published_is_read_and_nothing_else(either: Place) -> None:
    either.sql(
        "create table whole (id int primary key, a text)",
        "create table part (id int primary key, a text, secret text)",
        "create table root (id int, day date, primary key (id, day)) partition by range (day)",
        "create table leaf_a partition of root for values from ('2026-01-01') to ('2026-02-01')",
        "create table leaf_b (day date not null, gone int, id int not null)",
        "alter table leaf_b drop column gone",
        "alter table root attach partition leaf_b for values from ('2026-02-01') to ('2026-03-01')",
        "create table others (id int primary key)",
        "create table identity_of_all (id int, a text)",
        "alter table identity_of_all replica identity full",
        "insert into whole select n, 'x' from generate_series(1, 500) n",
        "insert into part select n, 'x', 'secret' from generate_series(1, 10) n",
        "insert into root select n, '2026-01-05' from generate_series(1, 3) n",
        "insert into root select n, '2026-02-05' from generate_series(4, 5) n",
        "insert into others values (1)",
        "insert into identity_of_all values (1, 'x'), (1, 'x')",
    )
    published = (
        "table whole, part (id, a) where (id > 7), root, identity_of_all with (publish_via_partition_root = true)"
    )
    either.prepare(published=published)
    with held(either) as snapshot:
        rows = read_all(either, snapshot)
    counts = {table: len(list(group)) for table, group in itertools.groupby(row["table"] for row in rows)}
    assert counts == {"identity_of_all": 2, "part": 3, "root": 5, "whole": 500}
    after = {row["partition_key"]: json.loads(row["event"])["after"] for row in rows}
    assert after["public.part/9"] == {"id": 9, "a": "x"}
    assert after["public.root/4,2026-02-05"] == {"id": 4, "day": "2026-02-05"}
    assert after["public.identity_of_all"] == {"id": 1, "a": "x"}
    ids = [(row["lsn"], row["ordinal"]) for row in rows]
    assert ids == sorted(set(ids))
    assert ids[-1][1] < 0


def test_no_table_is_locked_while_a_snapshot_is_held(either: Place) -> None:
    either.sql(
        "create table root (id int, day date, primary key (id, day)) partition by range (day)",
        "create table leaf partition of root for values from ('2026-01-01') to ('2026-02-01')",
        "create table plain (id int primary key)",
        "alter table plain replica identity full",
        f"create publication {either.publication} for all tables with (publish_via_partition_root = true)",
    )
    with held(either) as snapshot:
        assert len(snapshot.tables(either.publication)) == 2
        assert snapshot.full_keys(either.publication)
        # Autovacuum may look at a table at any moment.
        locked = """
            select relation::regclass from pg_locks join pg_stat_activity using (pid)
            where locktype = 'relation' and relation >= 16384 and datname = current_database()
            and backend_type <> 'autovacuum worker'"""
        assert either.sql(locked) == []
        # A writer of tables would wait for it, and everybody else for him.
        either.sql(f"set lock_timeout = '{TIMEOUT:g}s'", "truncate root")


def test_a_chunk_is_the_same_on_every_reading_whatever_is_written_meanwhile(either: Place) -> None:
    either.prepare("create table t (id int primary key, v int) with (autovacuum_enabled = off)")
    either.sql("insert into t select n, 0 from generate_series(1, 1000) n", "delete from t where id % 3 = 0")
    with held(either) as snapshot:
        planned = parts(either, snapshot)
        assert len(planned) > 3
        first = [read(either, snapshot, chunk) for chunk in planned]
        either.sql("update t set v = 1", "delete from t where id % 2 = 0", "vacuum t")
        either.sql("insert into t select n, 9 from generate_series(2000, 4000) n")
        assert [read(either, snapshot, chunk) for chunk in planned] == first
    rows = [json.loads(row["event"])["after"] for chunk in first for row in chunk]
    assert rows == [{"id": n, "v": 0} for n in range(1, 1001) if n % 3]


@pytest.mark.parametrize("rewrite", ["vacuum full t", "truncate t", "alter table t alter v type bigint"])
def test_a_table_that_is_rewritten_meanwhile_is_not_read_as_if_it_were_not(place: Place, rewrite: str) -> None:
    place.prepare("create table t (id int primary key, v int)")
    place.sql("insert into t select n, 0 from generate_series(1, 1000) n")
    with held(place) as snapshot:
        first, *_, last = parts(place, snapshot)
        assert read(place, snapshot, first)
        place.sql(rewrite)
        with pytest.raises(SnapshotLost, match='"t" was rewritten while it was read'):
            read(place, snapshot, last)


@pytest.mark.parametrize("change", ["drop table t", "alter table t rename to s", "alter table t rename v to w"])
def test_a_table_that_is_no_longer_as_it_was_described_is_read_under_another_snapshot(
    place: Place, change: str
) -> None:
    place.prepare("create table t (id int primary key, v int)")
    place.sql("insert into t values (1, 0)")
    with held(place) as snapshot:
        (chunk,) = parts(place, snapshot)
        place.sql(change)
        with pytest.raises(SnapshotLost, match=r'"t" was altered while it was read .* does not exist'):
            read(place, snapshot, chunk)


def test_a_snapshot_ends_with_whoever_holds_it(place: Place) -> None:
    place.prepare("create table t (id int primary key)")
    place.sql("insert into t values (1)")
    with held(place) as snapshot:
        (chunk,) = parts(place, snapshot)
    # A session that was closed may live on in the server for a moment.
    wait_for(lambda: not place.sql("select pg_ls_dir('pg_snapshots')"), "the server has noticed")
    with pytest.raises(SnapshotLost, match="the snapshot is gone with whoever held it"):
        read(place, snapshot, chunk)


def test_rows_that_may_not_be_read_are_told_in_one_line_and_never_passed_over(place: Place) -> None:
    place.prepare("create table t (id int primary key)", "create table u (id int primary key)")
    role = place.role("reader", "replication")
    place.sql(f"insert into t values (1); insert into u values (1); grant select on u to {role}")
    place.sql("alter table u enable row level security")
    with held(place) as snapshot:
        of_t, of_u = parts(place, snapshot)
        for chunk, advice in ((of_t, 'GRANT SELECT ON "public"."t"'), (of_u, "BYPASSRLS")):
            with pytest.raises(CannotReplicate, match=advice) as error:
                list(read_chunk(place.dsn_of(role), snapshot.view, chunk, FORMAT))
            assert "\n" not in str(error.value)


def begun(place: Place, record: SnapshotRecord, snapshot: HeldSnapshot) -> list[int]:
    """Note down what is left to read, each table as one chunk; their oids."""
    published = snapshot.tables(place.publication)
    tables = left_to_read(published, record.state())
    record.begin_tables(snapshot.view.point, [(table, 1) for table in tables], published)
    return [table.oid for table in tables]


def test_the_next_leader_reads_what_is_not_finished_and_keeps_the_slot(either: Place) -> None:
    either.sql("create table a (id int primary key)", "create table b (id int primary key)")
    either.sql("insert into a values (1)", "insert into b values (1)", "create publication changes for table a, b")
    record = SnapshotRecord(either.dsn, either.slot, 1, LEASE)
    with make_slot(either.dsn, record) as first:
        assert first.view.point == either.confirmed()
        a, b = begun(either, record, first)
        record.add(a, rows=1, chunks=1)
    either.sql("insert into b values (2)")
    state = record.state()
    assert state is not None
    assert str(state) == "1 of 2 tables, 1 of 2 chunks, 1 row"
    second = SnapshotRecord(either.dsn, either.slot, 2, LEASE)
    with take_again(either.dsn, second) as again:
        assert again.view.point > first.view.point == either.confirmed()
        _, of_b = parts(either, again)
        assert [json.loads(row["event"])["after"]["id"] for row in read(either, again, of_b)] == [1, 2]
        # The one before has no say any more.
        with pytest.raises(NotLeading):
            record.add(b, rows=1, chunks=1)
        assert begun(either, second, again) == [b]
        second.add(b, rows=2, chunks=1)
        second.finish()
    state = second.state()
    assert state is not None
    assert [(table.name, table.point, table.finished) for table in state.tables] == [
        ("a", first.view.point, True),
        ("b", again.view.point, True),
    ]
    assert state.finished is not None
    assert [event["after"]["id"] for event in streamed(either)] == [2]


def test_a_finished_table_is_known_whatever_its_name_is_and_another_of_its_name_is_not(either: Place) -> None:
    for name in ("renamed", "anew", "swapped", "gone", "dropped"):
        either.sql(f"create table {name} (id int primary key)", f"insert into {name} values (1)")
    either.sql("create publication changes for tables in schema public")
    first, second = (SnapshotRecord(either.dsn, either.slot, leadership, LEASE) for leadership in (1, 2))
    with make_slot(either.dsn, first) as snapshot:
        oids = {table.name[1]: table.oid for table in snapshot.tables("changes")}
        begun(either, first, snapshot)
        for name in ("renamed", "anew", "gone"):
            first.add(oids[name], rows=1, chunks=1)
    either.sql(
        "alter table renamed rename to other",
        "drop table anew, gone, dropped",
        "create table anew (id int primary key)",
        "insert into anew values (2)",
        "alter table swapped rename to renamed",
    )
    with take_again(either.dsn, second) as again:
        left = left_to_read(again.tables("changes"), second.state())
        assert {table.name[1]: table.oid == oids["swapped"] for table in left} == {"anew": False, "renamed": True}
        for oid in begun(either, second, again):
            second.add(oid, rows=1, chunks=1)
        assert left_to_read(again.tables("changes"), second.state()) == []
    # What is not there any more is not waited for.
    assert str(second.state()) == "3 of 3 tables, 3 of 3 chunks, 3 rows"


def test_a_leader_before_neither_begins_a_snapshot_anew_nor_takes_it_over_nor_forgets_it(either: Place) -> None:
    either.sql("create table a (id int primary key)", "create publication changes for table a")
    first, second = (SnapshotRecord(either.dsn, either.slot, leadership, LEASE) for leadership in (1, 2))
    make_slot(either.dsn, first).close()
    with take_again(either.dsn, second) as snapshot:
        begun(either, second, snapshot)
        kept = second.state()
        # The first one stood still meanwhile, and goes on with what it was about to do.
        for late in (first.want, lambda: first.take_over(either.confirmed()), first.forget):
            with pytest.raises(NotLeading):
                late()
            assert second.state() == kept
        second.finish()
    # And who leads may do all of it, also where it did so before.
    for record in (second, SnapshotRecord(either.dsn, either.slot, 3, LEASE)):
        record.take_over(either.confirmed())
        record.want()
        assert str(record.state()) == "0 of 0 tables, 0 of 0 chunks, 0 rows"
        record.forget()
        assert record.state() is None
        record.want()

    # The numbers of another lease begin anew.
    renamed = SnapshotRecord(either.dsn, either.slot, 1, "renamed")
    renamed.take_over(either.confirmed())
    for other in (first, second):
        with pytest.raises(NotLeading):
            other.finish()
        with pytest.raises(NotLeading):
            other.start(5)
    renamed.finish()
    renamed.forget()
    assert renamed.state() is None


def test_that_a_snapshot_is_due_is_known_before_the_slot_is_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sql("create table a (id int primary key)", "create publication changes for table a")

    def killed(*_: object) -> None:
        raise PostgresError("killed")

    monkeypatch.setattr("strandline.cdc.snapshot.create_slot", killed)
    with pytest.raises(PostgresError, match="killed"):
        make_slot(place.dsn, SnapshotRecord(place.dsn, place.slot, 1, LEASE))
    with Session(place.dsn) as session:
        state = snapshot_state(session, place.slot)
    assert state is not None
    assert (state.start, state.finished) == (None, None)


def test_a_role_that_may_not_create_needs_the_tables_and_the_rights_to_them(place: Place) -> None:
    place.sql("create table a (id int primary key)", "create publication changes for table a")
    role = place.role("poor", "replication")
    record = SnapshotRecord(place.dsn_of(role), place.slot, 1, LEASE)
    with pytest.raises(CannotReplicate, match=r"schema strandline cannot be created: .* \(GRANT CREATE ON DATABASE"):
        record.want()
    SnapshotRecord(place.dsn, place.slot, 1, LEASE).want()
    place.sql(f"grant usage on schema strandline to {role}")
    with pytest.raises(CannotReplicate, match="GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES"):
        record.want()
    place.sql(f"grant select, insert, update, delete on all tables in schema strandline to {role}")
    record.want()


def test_a_slot_that_has_moved_on_before_its_snapshot_was_finished_is_a_loss(place: Place) -> None:
    place.sql("create table a (id int primary key)", "create publication changes for table a")
    make_slot(place.dsn, SnapshotRecord(place.dsn, place.slot, 1, LEASE)).close()
    place.sql("insert into a values (1)", f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())")
    with pytest.raises(ChangesLost, match="was acknowledged by somebody else, or the slot was made anew"):
        take_again(place.dsn, SnapshotRecord(place.dsn, place.slot, 2, LEASE))


def test_another_snapshot_is_taken_though_the_server_has_not_noticed_the_end_of_the_one_before(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sql("create table a (id int primary key)", "create publication changes for table a")
    record = SnapshotRecord(place.dsn, place.slot, 1, LEASE)
    make_slot(place.dsn, record).close()
    left: list[NewSlot] = []
    monkeypatch.setattr(NewSlot, "__exit__", lambda made, *_: left.append(made))
    for _ in range(2):
        with take_again(place.dsn, record) as again:
            assert len(again.tables("changes")) == 1
    for made in left:
        made.close()


@contextmanager
def led(place: Place, checkpoint: Path) -> Iterator[tuple[CdcConfig, Leadership]]:
    """A place with one table that somebody leads."""
    place.sql("create table a (id int primary key)", "create publication changes for table a")
    with Session(place.dsn) as session:
        create_lease_table(session)
        create_acknowledged_table(session)
    postgres = PostgresSection(dsn=Secret(place.dsn), slot=place.slot, publication="changes")
    config = CdcConfig(postgres=postgres, kinesis=KinesisSection(stream="s"), checkpoint=str(checkpoint))
    leadership = acquire(place.dsn, config.lease_name, "test", wait=timedelta(seconds=TIMEOUT))
    assert leadership is not None
    with leadership:
        yield config, leadership


def test_rows_that_were_left_out_do_not_follow_changes(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with led(place, tmp_path) as (config, leadership):
        never = msgspec.structs.replace(config, snapshot="never")
        make_slot(place.dsn, SnapshotRecord(place.dsn, place.slot, leadership.number, leadership.name)).close()
        assert take_slot(never, leadership) is None
        assert "is left so: snapshot is 'never'" in capsys.readouterr().err
        with Session(place.dsn) as session:
            acknowledge(session, identified(session, place.slot)[0], place.confirmed() + 1, leadership.number)
        with pytest.raises(CannotReplicate, match=r"no row may follow them; set snapshot: never, or begin anew: drop"):
            take_slot(config, leadership)


def test_who_leads_no_more_takes_no_snapshot_over_and_finds_no_loss(place: Place, tmp_path: Path) -> None:
    with led(place, tmp_path) as (config, leadership):
        make_slot(place.dsn, SnapshotRecord(place.dsn, place.slot, leadership.number, leadership.name)).close()
        leadership.close()
        # The next one has taken it over, finished it, and published changes.
        SnapshotRecord(place.dsn, place.slot, leadership.number + 1, leadership.name).take_over(place.confirmed())
        taken = place.sql("select leadership from strandline.snapshot")
        place.sql(f"select pg_replication_slot_advance('{place.slot}', pg_current_wal_lsn())")
        with pytest.raises(NotLeading):
            take_slot(config, leadership)
        assert place.sql("select leadership from strandline.snapshot") == taken


def test_where_a_slot_is_made_without_rows_none_are_due_later(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with led(place, tmp_path) as (config, leadership):
        never = msgspec.structs.replace(config, snapshot="never")
        make_slot(place.dsn, SnapshotRecord(place.dsn, place.slot, leadership.number, leadership.name)).close()
        place.sql(f"select pg_drop_replication_slot('{place.slot}')")
        assert take_slot(never, leadership) is None
        assert "deleted, since" in capsys.readouterr().err
        assert take_slot(config, leadership) is None


def test_only_a_slot_that_we_make_brings_a_snapshot_and_none_where_it_is_not_wanted(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with led(place, tmp_path) as (config, leadership):
        never = msgspec.structs.replace(config, snapshot="never")
        assert take_slot(never, leadership) is None
        # It is there now, and nothing is said of it.
        assert take_slot(config, leadership) is None
        place.sql(f"select pg_drop_replication_slot('{place.slot}')")
        for _ in range(2):
            held_now = take_slot(config, leadership)
            assert held_now is not None
            held_now.close()
        assert "was lost before it was finished" in capsys.readouterr().err
        assert take_slot(never, leadership) is None
        assert "is left so: snapshot is 'never'" in capsys.readouterr().err
        place.sql(f"select pg_drop_replication_slot('{place.slot}')")
        made = take_slot(config, leadership)
        assert made is not None
        made.close()
        assert "all begins anew" in capsys.readouterr().err
