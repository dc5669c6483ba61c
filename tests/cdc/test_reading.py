"""Assembly over a real server: ids that do not depend on how a transaction comes, and reading resumed inside one."""

import json
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from strandline.cdc.assembly import Assembly, Batch, Offset
from strandline.cdc.replication import Replication
from strandline.cdc.session import Session
from strandline.cdc.slot import heartbeat
from strandline.cdc.spill import Spill
from strandline.errors import RollbackUnclear
from strandline.wire.change import Events
from strandline.wire.event import Event, EventFormat
from tests.cdc.support import Place, check_slot
from tests.support import TIMEOUT, wait_for

TABLES = ("create table t (id int primary key, name text)", "create table u (id int primary key)")
FORMAT = EventFormat(database="shop", split_key_changes=True)


def assembly(start: Offset, **options: object) -> Assembly:
    return Assembly(Events(FORMAT), start, **options)  # type: ignore[arg-type]


def batches(replication: Replication, reader: Assembly, until: int) -> Iterator[Batch]:
    """Batches until the log is read up to a position."""
    deadline = time.monotonic() + TIMEOUT
    while reader.reached.end < until:
        assert time.monotonic() < deadline, f"{reader.reached} after {TIMEOUT:g} s"
        batch = reader.batch()
        if batch is not None:
            yield batch
        else:
            reader.feed(replication.take(0.5))


def told(found: Iterator[Batch] | list[Batch]) -> list[tuple[int, int | None, Event]]:
    return [(part.stamp.lsn, part.stamp.xid, event) for batch in found for part in batch.parts for event in part.events]


def log_end(place: Place) -> int:
    with Session(place.dsn) as session:
        return heartbeat(session, beyond=0) or 0


def read_whole(place: Place, until: int, **options: Any) -> tuple[list[tuple[int, int | None, Event]], str]:
    """All events up to a position, and the kinds of messages that they came in."""
    kinds = ""
    found = []
    with place.reading(**options) as replication:
        reader = assembly(Offset(), spill=Spill(max_memory=20_000))
        while reader.reached.end < until:
            frames = replication.take(0.5)
            kinds += b"".join(frame[2][:1] for frame in frames).decode("latin-1")
            reader.feed(frames)
            while (batch := reader.batch()) is not None:
                found += told([batch])
    return found, kinds


def write_in_every_way(place: Place) -> None:
    """Large transactions side by side, with savepoints, some rolled back; small ones; truncates, DDL, messages."""
    many = "insert into t select g, repeat('x', 60) from generate_series({}, {}) g"
    with psycopg.connect(place.dsn) as one, psycopg.connect(place.dsn) as two, psycopg.connect(place.dsn) as three:
        one.execute(many.format(1, 1000).encode())
        two.execute(many.format(10_001, 11_000).encode())
        one.execute("savepoint a")
        one.execute(many.format(1001, 2000).encode())
        one.execute("savepoint b")
        one.execute("insert into u select g from generate_series(1, 1000) g")
        three.execute(many.format(20_001, 22_000).encode())
        one.execute("rollback to savepoint a")
        one.execute("insert into u values (1)")
        one.execute("savepoint c")
        one.execute("update t set id = id + 100000 where id <= 700")
        one.execute("release savepoint c")
        place.sql("insert into u values (500000)", "select pg_logical_emit_message(false, 'outside', 'x')")
        two.execute("select pg_logical_emit_message(true, 'inside', 'x')")
        two.execute("delete from t where id > 10000 and id <= 10100")
        three.rollback()
        two.commit()
        one.execute("alter table u add column extra int default 7")
        one.execute("insert into u select g from generate_series(2000, 3000) g")
        one.commit()
    place.sql("truncate t, u", "insert into u values (1, 2)")


def test_a_transaction_has_the_same_ids_and_events_streamed_or_not(either: Place) -> None:
    either.prepare(*TABLES)
    write_in_every_way(either)
    end = log_end(either)
    streamed, kinds = read_whole(either, end, work_mem="64kB")
    assert kinds.count("c") == 2
    assert "A" in kinds
    whole, plain_kinds = read_whole(either, end, streaming=False, work_mem="64kB")
    assert not set("ScA") & set(plain_kinds)
    assert streamed == whole
    ids = [(lsn, event.ordinal) for lsn, _, event in streamed]
    assert ids == sorted(set(ids))
    ops = [event.op for _, _, event in streamed]
    assert {op: ops.count(op) for op in set(ops)} == {
        "c": 1000 + 1 + 700 + 1 + 1000 + 1001 + 1,
        "d": 700 + 100,
        "m": 2,
        "t": 2,
    }


def test_a_stream_does_not_tell_which_part_of_a_transaction_a_message_is_of(either: Place) -> None:
    either.prepare(*TABLES)
    many = "insert into t select g, repeat('x', 60) from generate_series({}, {}) g"
    either.in_one(
        many.format(1, 1000),
        "select pg_logical_emit_message(true, 'kept', 'x')",
        "savepoint a",
        "select pg_logical_emit_message(true, 'taken back', 'x')",
        many.format(1001, 2000),
        "rollback to savepoint a",
        many.format(2001, 3000),
    )
    end = log_end(either)
    with pytest.raises(RollbackUnclear, match="which has messages, was rolled back"):
        read_whole(either, end, work_mem="64kB")
    whole, _ = read_whole(either, end, streaming=False, work_mem="64kB")
    assert [json.loads(event.event)["message"]["prefix"] for _, _, event in whole if event.op == "m"] == ["kept"]
    assert len(whole) == 2001


def test_reading_resumes_inside_a_transaction_and_each_row_comes_once(either: Place) -> None:
    either.prepare(*TABLES)
    either.sql("insert into u values (1)")
    either.sql("insert into t select g, repeat('x', 60) from generate_series(1, 3000) g")
    either.sql("insert into u values (2)")
    end = log_end(either)
    with Session(either.dsn) as session:
        identity = check_slot(session, either.slot).identity
    reached, found = Offset(), list[tuple[int, int | None, Event]]()
    cuts = 0
    while reached.end < end:
        wait_for(lambda: not either.is_read(), "the slot is free")
        with Session(either.dsn) as session:
            if reached.end:
                check_slot(session, either.slot, at=reached.end, kept=identity)
        with either.replication(work_mem="64kB", streaming=cuts % 2 == 0) as replication:
            replication.start(reached.end)
            reader = assembly(reached, max_rows=700)
            for count, batch in enumerate(batches(replication, reader, end)):
                found += told([batch])
                reached = batch.reached
                replication.acknowledge(reached.end)
                if count == 1:
                    break
            else:
                reached = reader.reached
        cuts += 1
    assert cuts > 2
    rows = [(event.table, event.ordinal) for _, _, event in found]
    assert rows == [("u", 1), *(("t", ordinal) for ordinal in range(1, 3001)), ("u", 1)]
    assert either.confirmed() <= reached.end


def test_an_idle_advance_frees_the_log_while_a_large_transaction_runs_and_loses_nothing(place: Place) -> None:
    place.prepare(*TABLES)
    with psycopg.connect(place.dsn) as writer:
        writer.execute("insert into t select g, repeat('x', 60) from generate_series(1, 2000) g")
        end = log_end(place)
        with place.replication(work_mem="64kB") as replication:
            replication.start(0)
            reader = assembly(Offset())

            def is_idle_beyond() -> bool:
                reader.feed(replication.take(0.1))
                assert reader.batch() is None
                position = replication.idle_at
                return position is not None and position >= end and reader.is_idle

            wait_for(is_idle_beyond, "the server has come so far, and nothing is whole")
            reached = Offset(end=end)
            replication.acknowledge(end)
            wait_for(lambda: place.confirmed() == end, "the slot has moved")
        writer.commit()
    with place.reading(reached.end, work_mem="64kB") as replication:
        found = told(batches(replication, assembly(reached), log_end(place)))
    assert [event.ordinal for _, _, event in found] == list(range(1, 2001))
