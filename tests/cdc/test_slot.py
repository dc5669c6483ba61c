"""What must hold before a slot is read: each fault is told in one line that says what to do."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import psycopg
import pytest

from strandline.cdc.config import CdcConfig
from strandline.cdc.publication import Publication, PublishedTable, check_publications, create_publication
from strandline.cdc.session import Session
from strandline.cdc.slot import check_server, create_slot, heartbeat, look, take_over
from strandline.config import load
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    OptionError,
    PostgresError,
    PostgresUnreachable,
    SlotBusy,
    SlotDelayed,
    StrandlineError,
)
from strandline.wire.pgoutput import lsn_text
from tests.cdc.support import Place, check_slot, take_until
from tests.support import TIMEOUT, wait_for

TABLE = "create table t (id int primary key, name text)"
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "cdc.md"


def told(error: pytest.ExceptionInfo[StrandlineError]) -> str:
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_role_that_may_not_replicate_is_refused(either: Place) -> None:
    either.prepare(TABLE)
    role = either.role("plain")
    with Session(either.dsn_of(role)) as session, pytest.raises(CannotReplicate) as error:
        check_server(session)
    assert f'ALTER ROLE "{role}" REPLICATION' in told(error)
    with pytest.raises(PostgresUnreachable, match="WAL sender"):
        Session(either.dsn_of(role), replication=True)


def test_a_role_with_replication_alone_passes_every_check(either: Place) -> None:
    either.prepare(TABLE)
    with Session(either.dsn_of(either.role("reader", "replication"))) as session:
        check_server(session)
        check_publications(session, [either.publication])
        assert check_slot(session, either.slot).reader == 0


def test_a_wrong_password_does_not_show_itself(place: Place) -> None:
    role = place.role("user")
    dsn = place.dsn_of(role).replace(f"secret-of-{role}", "not-this-one")
    with pytest.raises(PostgresUnreachable) as error:
        Session(dsn)
    assert "password authentication failed" in told(error)
    assert "not-this-one" not in told(error)
    with pytest.raises(OptionError) as unreadable:
        Session("postgresql://user:not-this-one@host:port:port/x?what")
    assert "not-this-one" not in told(unreadable)


def test_a_publication_that_is_missing_is_named(either: Place) -> None:
    with Session(either.dsn) as session, pytest.raises(CannotReplicate) as error:
        check_publications(session, ["orders"])
    assert "'orders' does not exist" in told(error)
    assert "CREATE PUBLICATION" in told(error)


def test_a_publication_is_made_with_tables_schemas_columns_and_rows(either: Place) -> None:
    either.sql(
        TABLE, 'create schema "S ""x"""', 'create table "S ""x""".u (id int primary key)', "create table other ()"
    )
    wanted = Publication(
        name="mine",
        tables=[PublishedTable(schema="public", name="t", columns=["id"], where="id > 5")],
        schemas=['S "x"'],
    )
    if either.server.major == 16:
        # A list of columns does not go with whole schemas in one publication.
        wanted = Publication(
            name="mine", tables=[PublishedTable(schema="public", name="t", where="id > 5")], schemas=wanted.schemas
        )
    else:
        wanted = Publication(name="mine", tables=wanted.tables)
    with Session(either.dsn) as session:
        create_publication(session, wanted)
        create_publication(session, wanted)
        check_publications(session, ["mine"])
    found = either.sql("select schemaname, tablename, rowfilter from pg_publication_tables order by 1, 2")
    assert ("public", "t", "(id > 5)") in found
    assert ("public", "other", None) not in found
    assert len(found) == (2 if either.server.major == 16 else 1)


def test_a_publication_that_cannot_be_made_says_who_can(place: Place) -> None:
    place.sql(TABLE)
    wanted = Publication(name="mine", tables=[PublishedTable(schema="public", name="t")])
    with Session(place.dsn_of(place.role("reader", "replication"))) as session, pytest.raises(CannotReplicate) as error:
        create_publication(session, wanted)
    assert 'CREATE PUBLICATION "mine" FOR TABLE "public"."t"' in told(error)
    nowhere = Publication(name="mine", tables=[PublishedTable(schema="public", name="nowhere")])
    with Session(place.dsn) as session, pytest.raises(CannotReplicate, match="nowhere"):
        create_publication(session, nowhere)


def test_the_file_in_the_documentation_is_one_that_can_be_used(either: Place, tmp_path: Path) -> None:
    found = re.search(r"```yaml\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert found is not None
    file = tmp_path / "cdc.yaml"
    file.write_text(found[1])
    wanted = load(file, CdcConfig).postgres.wanted()
    assert wanted is not None
    either.sql("create table orders (id int primary key)", "create table items (id int primary key, name text, x int)")
    with Session(either.dsn) as session:
        create_publication(session, wanted)


def test_a_publication_that_another_instance_makes_at_the_same_moment_is_taken(either: Place) -> None:
    either.sql(TABLE)
    wanted = Publication(name="mine", tables=[PublishedTable(schema="public", name="t")])
    waits = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    with (
        psycopg.connect(either.dsn) as other,
        Session(either.dsn) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute(wanted.sql().encode())
        creating = pool.submit(create_publication, session, wanted)
        wait_for(lambda: either.sql(waits), "it waits for the other")
        other.commit()
        creating.result(TIMEOUT)


IDENTITIES = ("default", "full", "using index t_mark")
SELECTIONS: list[tuple[list[str], str | None]] = [
    (["name"], None),
    (["id", "mark"], None),
    (["id", "mark", "name"], None),
    ([], "id > 5"),
    ([], "mark > 5 and name = 'x'"),
    ([], "length(name) > 2"),
    (["mark"], "mark is null"),
]


def test_no_publication_is_made_under_which_postgres_refuses_to_update_a_table(either: Place) -> None:
    either.sql(
        "create table t (gone int, id int primary key, mark int not null constraint t_mark unique, name text)",
        "alter table t drop column gone",
    )
    refused = 0
    with Session(either.dsn) as session:
        for identity, (columns, where) in itertools.product(IDENTITIES, SELECTIONS):
            either.sql(f"alter table t replica identity {identity}")
            table = PublishedTable(schema="public", name="t", columns=columns, where=where)
            wanted = Publication(name="mine", tables=[table])
            try:
                create_publication(session, wanted)
            except CannotReplicate as error:
                refused += 1
                assert "Postgres would refuse updates and deletes" in str(error)
                assert either.sql("select 1 from pg_publication") == []
                either.sql(wanted.sql())
                with pytest.raises(psycopg.errors.InvalidColumnReference):
                    either.sql("update t set name = 'x'")
            else:
                either.sql("update t set name = 'x'", "delete from t")
            either.sql("drop publication mine")
    assert 0 < refused < len(IDENTITIES) * len(SELECTIONS)


def test_a_publication_that_is_there_must_have_what_is_wanted(either: Place) -> None:
    either.sql(TABLE, "create table u (id int primary key)", "create schema s")
    t, u = (PublishedTable(schema="public", name=name) for name in "tu")
    with Session(either.dsn) as session:
        create_publication(session, Publication(name="mine", tables=[t]))
        for more in (Publication(name="mine", tables=[t, u]), Publication(name="mine", tables=[t], schemas=["s"])):
            with pytest.raises(CannotReplicate) as error:
                create_publication(session, more)
            remedy = re.search(r"run: (.*) \(its changes come from then on", told(error))
            assert remedy is not None
            either.sql(remedy[1])
            create_publication(session, more)
        # A table that is dropped leaves its publications, and does not come back to them.
        either.sql("drop table u", "create table u (id int primary key)")
        with pytest.raises(CannotReplicate, match=r"does not have table 'public\.u'"):
            create_publication(session, Publication(name="mine", tables=[t, u]))
        either.sql(
            "create publication everything for all tables", "create publication public for tables in schema public"
        )
        for name in ("everything", "public"):
            create_publication(session, Publication(name=name, tables=[u]))


def test_a_condition_cannot_smuggle_in_a_second_statement(place: Place) -> None:
    place.sql(TABLE)
    wanted = Publication(
        name="mine", tables=[PublishedTable(schema="public", name="t", where="true); drop table t; --")]
    )
    with Session(place.dsn) as session, pytest.raises(CannotReplicate):
        create_publication(session, wanted)
    assert place.sql("select count(*) from t") == [(0,)]


def test_tables_without_a_replica_identity_are_named(either: Place) -> None:
    either.prepare(TABLE, "create table loose (a int)", "create table mute (a int primary key)")
    either.sql("alter table mute replica identity nothing", "create table whole (a int)")
    either.sql("alter table whole replica identity full")
    with Session(either.dsn) as session, pytest.raises(CannotReplicate) as error:
        check_publications(session, [either.publication])
    assert "public.loose, public.mute;" in told(error)
    assert "REPLICA IDENTITY FULL" in told(error)


def test_inserts_alone_need_no_replica_identity(place: Place) -> None:
    place.sql("create table loose (a int)", "create publication p for table loose with (publish = 'insert')")
    with Session(place.dsn) as session:
        check_publications(session, ["p"])


def test_a_slot_that_is_missing_is_made_with_a_snapshot_that_other_sessions_see(either: Place) -> None:
    either.sql(TABLE, "insert into t values (1, 'before')", "create publication changes for table t")
    with Session(either.dsn) as session, pytest.raises(CannotReplicate, match="does not exist; have it created"):
        check_slot(session, either.slot)
    with create_slot(either.dsn, either.slot) as made:
        either.sql("insert into t values (2, 'after')")
        with psycopg.connect(either.dsn) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute(f"set transaction snapshot '{made.snapshot}'".encode())
            assert connection.execute("select name from t").fetchall() == [("before",)]
        with Session(either.dsn) as session:
            state = check_slot(session, either.slot, at=made.consistent_point)
    assert state.confirmed == made.consistent_point
    with either.replication() as replication:
        replication.start(made.consistent_point)
        frames = take_until(replication, b"C")
    assert [b"after" in frame[2] for frame in frames if frame[2][:1] == b"I"] == [True]


def test_a_slot_that_waits_for_a_long_transaction_is_given_up_by_name(place: Place) -> None:
    place.sql(TABLE)
    with psycopg.connect(place.dsn) as connection:
        connection.execute("insert into t values (1)")
        with pytest.raises(SlotDelayed) as error:
            create_slot(place.dsn, place.slot, wait=0.3)
        assert str(connection.info.backend_pid) in told(error)
    wait_for(
        lambda: not place.sql(f"select 1 from pg_replication_slots where slot_name = '{place.slot}'"), "no slot stays"
    )


def test_a_slot_of_another_plugin_kind_or_database_is_refused(either: Place) -> None:
    either.sql(f"select pg_create_physical_replication_slot('{either.slot}')")
    with (
        Session(either.dsn) as session,
        pytest.raises(CannotReplicate, match="of physical replication, not of pgoutput"),
    ):
        check_slot(session, either.slot)
    # The one plugin that every server has, by another name.
    either.sql(f"select pg_create_logical_replication_slot('{either.slot}_b', '$libdir/pgoutput')")
    with Session(either.dsn) as session, pytest.raises(CannotReplicate, match=r"of plugin .*, not of pgoutput"):
        check_slot(session, f"{either.slot}_b")
    either.sql(f"select pg_create_logical_replication_slot('{either.slot}_a', 'pgoutput')")
    with Session(either.server.url) as session, pytest.raises(CannotReplicate, match="belongs to database"):
        check_slot(session, f"{either.slot}_a")


def test_a_slot_that_somebody_reads_says_who(either: Place) -> None:
    either.prepare(TABLE)
    with either.replication() as reader, Session(either.dsn) as session:
        reader.start(0)
        with pytest.raises(SlotBusy) as error:
            check_slot(session, either.slot)
        assert "'strandline' at 127.0.0.1" in told(error)
        with either.replication() as other, pytest.raises(SlotBusy) as refused:
            other.start(0)
        assert "is active for PID" in told(refused)
        take_over(session, either.slot)
        assert check_slot(session, either.slot).reader == 0
        with pytest.raises(PostgresError, match="terminating connection"):
            take_until(reader, b"C")


def test_a_reader_that_is_not_one_of_ours_is_left_alone(either: Place) -> None:
    either.prepare(TABLE)
    with either.replication(dsn=f"{either.dsn}?application_name=other") as reader, Session(either.dsn) as session:
        reader.start(0)
        with pytest.raises(SlotBusy) as error:
            take_over(session, either.slot)
        assert "is read by somebody else ('other' at 127.0.0.1" in told(error)
        assert "stop the other instance, or use another slot" in told(error)
        assert either.is_read()


def test_a_slot_beyond_what_is_safe_stops_with_what_is_lost(either: Place) -> None:
    either.prepare(TABLE)
    with Session(either.dsn) as session:
        before = check_slot(session, either.slot)
        either.sql("insert into t values (1)")
        either.sql(f"select pg_replication_slot_advance('{either.slot}', pg_current_wal_lsn())")
        after = look(session, either.slot)
        assert after is not None and after.confirmed > before.confirmed
        with pytest.raises(ChangesLost) as error:
            check_slot(session, either.slot, at=before.confirmed, kept=before.identity)
        line = told(error)
        assert f"stands at {lsn_text(after.confirmed)}, beyond {lsn_text(before.confirmed)}" in line
        assert f"({after.confirmed - before.confirmed} bytes" in line
        assert re.search(r"drop the slot .* start again with a snapshot", line)
        check_slot(session, either.slot, at=after.confirmed, kept=before.identity)
        with pytest.raises(ChangesLost, match="set back to an earlier state"):
            check_slot(session, either.slot, at=after.server + (1 << 40))


def test_a_slot_made_anew_or_gone_or_elsewhere_is_not_taken_for_ours(either: Place) -> None:
    either.prepare(TABLE)
    with Session(either.dsn) as session:
        state = check_slot(session, either.slot)
        at, kept = state.confirmed, state.identity
        for changed, problem in [
            (msgspec.structs.replace(kept, system="7"), "another Postgres"),
            (msgspec.structs.replace(kept, timeline=kept.timeline + 1), "promoted or restored"),
            (msgspec.structs.replace(kept, database="elsewhere"), "is not the one that was read"),
        ]:
            with pytest.raises(ChangesLost, match=problem):
                check_slot(session, either.slot, at=at, kept=changed)
        either.sql(f"select pg_drop_replication_slot('{either.slot}')", "insert into t values (1)")
        with pytest.raises(ChangesLost, match="is gone"):
            check_slot(session, either.slot, at=at, kept=kept)
        either.sql(f"select pg_create_logical_replication_slot('{either.slot}', 'pgoutput')")
        with pytest.raises(ChangesLost, match="made anew"):
            check_slot(session, either.slot, at=at, kept=kept)


def test_a_slot_that_held_too_much_log_is_lost(either: Place) -> None:
    either.prepare(TABLE)
    status = f"select wal_status from pg_replication_slots where slot_name = '{either.slot}'"

    def is_lost() -> bool:
        either.sql("select pg_logical_emit_message(false, 'x', 'x')", "select pg_switch_wal()", "checkpoint")
        return either.sql(status) == [("lost",)]

    either.sql("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    try:
        wait_for(is_lost, "the slot is lost")
    finally:
        either.sql("alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")
    with Session(either.dsn) as session, pytest.raises(ChangesLost) as error:
        check_slot(session, either.slot)
    assert ("wal_removed" if either.server.major == 18 else "max_slot_wal_keep_size") in told(error)
    with either.replication() as replication, pytest.raises(ChangesLost) as refused:
        replication.start(0)
    assert "snapshot" in told(refused)


def test_a_heartbeat_moves_a_slot_whose_tables_rest(either: Place) -> None:
    either.prepare(TABLE)
    with Session(either.dsn) as session, either.replication() as replication:
        replication.start(0)
        lsn = heartbeat(session, beyond=0)
        assert lsn is not None
        frames = take_until(replication, b"M")
        assert b"strandline.heartbeat\0" in frames[-1][2]
        replication.acknowledge(lsn)
        wait_for(lambda: either.confirmed() >= lsn, "the slot has moved")
        # Where the log has not grown none is written: each would be a reason for the next.
        assert heartbeat(session, beyond=1 << 62) is None
