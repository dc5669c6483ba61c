"""The replication connection: what it sends on, what it tells the server, how it ends."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import psycopg
import pytest

from strandline.cdc.replication import Replication, ReplicationSettings
from strandline.cdc.session import Session
from strandline.cdc.slot import check_server
from strandline.errors import CannotReplicate, ChangesLost, ConnectionLost, PostgresUnreachable
from strandline.stack.postgres import Postgres
from tests.cdc.support import Place, take_until
from tests.support import TIMEOUT, run_warm, wait_for

TABLE = "create table t (id int primary key, name text)"


def kinds(frames: list[tuple[int, int, bytes]]) -> str:
    return b"".join(frame[2][:1] for frame in frames).decode()


def end_of(frame: tuple[int, int, bytes]) -> int:
    """The end LSN in a Commit."""
    assert frame[2][:1] == b"C"
    return int.from_bytes(frame[2][10:18], "big")


def wal_threads() -> list[threading.Thread]:
    """Those that read a replication connection."""
    return [thread for thread in threading.enumerate() if thread.name == "strandline-wal"]


def test_frames_come_whole_and_in_order(either: Place) -> None:
    either.prepare(TABLE)
    either.in_one(
        "insert into t values (1, 'a'), (2, 'b')", "update t set name = 'c' where id = 1", "delete from t where id = 2"
    )
    with either.replication() as replication:
        replication.start(0)
        frames = take_until(replication, b"C")
    assert kinds(frames) == "BRIIUDC"
    assert all(type(data) is bytes for _, _, data in frames)


def test_acknowledging_a_commits_end_sends_none_of_it_again_and_anything_before_sends_all(either: Place) -> None:
    either.prepare(TABLE)
    either.sql("insert into t values (1)", "insert into t values (2)")
    with either.reading() as replication:
        frames = take_until(replication, b"C", 2)
    first = next(frame for frame in frames if frame[2][:1] == b"C")
    commit = int.from_bytes(first[2][2:10], "big")
    with either.reading() as replication:
        assert kinds(take_until(replication, b"C", 2)) == "BRICBIC"
        # A row's position and the commit's own are not enough.
        replication.acknowledge(commit)
        wait_for(lambda: either.confirmed() == commit, "the slot is told")
    with either.reading() as replication:
        assert kinds(take_until(replication, b"C", 2)) == "BRICBIC"
        replication.acknowledge(end_of(first))
        wait_for(lambda: either.confirmed() == end_of(first), "the slot is told")
    with either.reading() as replication:
        again = take_until(replication, b"C")
        assert kinds(again) == "BRIC"
        assert end_of(again[-1]) > end_of(first)


def test_an_acknowledgement_never_goes_back(place: Place) -> None:
    place.prepare(TABLE)
    place.sql("insert into t values (1)", "insert into t values (2)")
    # A server may refuse to move the slot back by itself; what the walsender was told last shows here.
    told = (
        "select (flush_lsn - '0/0')::bigint, reply_time > %s from pg_stat_replication "
        f"where pid = (select active_pid from pg_replication_slots where slot_name = '{place.slot}')"
    )
    with place.replication(silence=0.1) as replication, psycopg.connect(place.dsn, autocommit=True) as connection:
        replication.start(0)
        first, end = (end_of(frame) for frame in take_until(replication, b"C", 2) if frame[2][:1] == b"C")
        replication.acknowledge(end)
        wait_for(lambda: place.confirmed() == end, "the slot has moved")
        for lower in (first, end - 100, end - 1, 0):
            replication.acknowledge(lower)
            after = datetime.now(UTC)
            # Each report says when it was made: wait for one that was made after the lower acknowledgement.
            wait_for(lambda at=after: connection.execute(told, (at,)).fetchone()[1], "a later report has come")  # type: ignore[misc,index]
            assert connection.execute(told, (after,)).fetchone() == (end, True)
            assert place.confirmed() == end


def test_idle_at_is_told_only_when_nothing_waits_and_moves_with_what_is_not_published(place: Place) -> None:
    place.prepare(TABLE)
    with place.replication() as replication:
        replication.start(0)
        place.sql("insert into t values (1)")
        take_until(replication, b"C")
        place.sql("create table u (a int)", "drop table u")
        (written,) = place.sql("select (pg_current_wal_flush_lsn() - '0/0')::bigint")[0]
        wait_for(lambda: (replication.idle_at or 0) >= written, "the server tells how far it is")
        place.sql("insert into t values (2)")
        wait_for(lambda: replication.idle_at is None, "something waits")
        take_until(replication, b"C")


def test_a_full_queue_holds_the_server_back_and_still_answers_it(place: Place) -> None:
    place.prepare(TABLE, f"alter role postgres in database {place.name} set wal_sender_timeout = '15s'")
    place.sql("insert into t select g, repeat('x', 1000) from generate_series(1, 20000) g")
    reader = f"select active_pid from pg_replication_slots where slot_name = '{place.slot}'"
    with place.replication(max_frames=100, max_bytes=1 << 20, streaming=False, silence=TIMEOUT) as replication:
        replication.start(0)
        wait_for(lambda: replication._is_full, "the queue is full")
        walsender = place.sql(reader)
        heard = f"select reply_time from pg_stat_replication where pid = ({reader})"
        before = wait_for(lambda: [row for row in place.sql(heard) if row[0]], "the server has heard from us at all")
        # Sooner than we would have to by ourselves: the server would have ended the walsender by then.
        wait_for(lambda: place.sql(reader) != walsender or place.sql(heard) > before, "the server hears from us")
        assert place.sql(reader) == walsender
        assert replication._is_full
        # It has not come to the end of the one transaction that there is.
        behind = f"select sent_lsn < pg_current_wal_flush_lsn() from pg_stat_replication where pid = ({reader})"
        assert place.sql(behind) == [(True,)]
        frames = take_until(replication, b"C")
    assert kinds(frames).count("I") == 20_000


def test_the_queue_is_bounded_by_count_and_by_bytes(place: Place) -> None:
    place.prepare(TABLE)
    place.sql("insert into t select g, repeat('x', 1000) from generate_series(1, 5000) g")
    for frames, size in [(50, 1 << 30), (1 << 30, 100_000)]:
        with place.reading(max_frames=frames, max_bytes=size) as replication:
            wait_for(lambda r=replication: r._is_full, "the queue is full")  # type: ignore[misc]
            # A read of the socket is not cut: it brings some 16 KiB beyond the bound.
            assert len(replication.take(1)) < 400


def test_what_ends_the_connection_is_told_by_take_after_all_frames(place: Place) -> None:
    place.prepare(TABLE)
    with place.replication(max_frames=1) as replication:
        replication.start(0)
        place.sql("insert into t values (1)")
        wait_for(lambda: replication._is_full, "the queue is full, and the socket is not read")
        place.sql("insert into t values (2)")
        ((written,),) = place.sql("select pg_current_wal_flush_lsn()::text")
        wait_for(lambda: place.has_sent(written), "the walsender has sent all")
        ((walsender,),) = place.sql(f"select active_pid from pg_replication_slots where slot_name = '{place.slot}'")
        place.sql(f"select pg_terminate_backend({walsender}, {TIMEOUT * 1_000:.0f})")
        # The last frames and the end of the stream now come with one read of the socket.
        assert kinds(take_until(replication, b"C", 2)) == "BRICBIC"
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="terminating connection"):
                take_until(replication, b"C")


def test_whatever_ends_the_reading_is_told_by_take(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise AssertionError

    monkeypatch.setattr(Replication, "_read", broken)
    place.prepare("create table t (id int primary key)")
    with place.replication() as replication:
        replication.start(0)
        with pytest.raises(ConnectionLost, match="AssertionError"):
            replication.take(TIMEOUT)


def test_a_slot_or_publication_that_is_missing_is_told(either: Place) -> None:
    with either.replication() as replication, pytest.raises(CannotReplicate, match="does not exist; create it"):
        replication.start(0)
    either.prepare(TABLE)
    either.sql(f"drop publication {either.publication}", "insert into t values (1)")
    with either.replication() as replication:
        replication.start(0)
        with pytest.raises((CannotReplicate, ChangesLost), match="publication"):
            take_until(replication, b"C")


def test_a_publication_dropped_while_it_is_read_is_no_silence(either: Place) -> None:
    either.prepare(TABLE)
    with either.replication() as replication:
        replication.start(0)
        either.sql("insert into t values (1)")
        take_until(replication, b"C")
        either.sql(f"drop publication {either.publication}", "insert into t values (2)")
        with pytest.raises((CannotReplicate, ChangesLost), match="publication"):
            take_until(replication, b"C")


def test_what_a_database_sets_for_others_neither_silences_nor_ends_a_replication(either: Place) -> None:
    either.prepare(TABLE)
    either.sql(f"alter database {either.name} set client_min_messages = error")
    if either.server.major >= 17:
        either.sql(f"alter database {either.name} set transaction_timeout = '1min'")
        with Session(either.dsn, replication=True) as session:
            assert session.query("SHOW transaction_timeout") == [("0",)]
    with either.replication() as replication:
        replication.start(0)
        either.sql("insert into t values (1)")
        take_until(replication, b"C")
        either.sql(f"drop publication {either.publication}", "insert into t values (2)")
        either.sql("select pg_logical_emit_message(false, 'behind', 'x')")
        with pytest.raises((CannotReplicate, ChangesLost), match="publication"):
            take_until(replication, b"M")


def test_nothing_that_follows_a_loss_is_handed_out(either: Place) -> None:
    either.prepare(TABLE)
    with either.replication(max_frames=1) as replication:
        replication.start(0)
        either.sql("insert into t values (1)")
        wait_for(lambda: replication._is_full, "the queue is full, and the socket is not read")
        either.sql(f"drop publication {either.publication}", "insert into t values (2)")
        ((behind,),) = either.sql("select pg_logical_emit_message(false, 'behind', 'x')::text")
        # The warning and the message behind it then come with one read of the socket.
        wait_for(lambda: either.has_sent(behind), "the walsender has sent all, or has ended")
        found = take_until(replication, b"C")
        wait_for(lambda: not wal_threads(), "the reading has ended")
        with pytest.raises((CannotReplicate, ChangesLost), match="publication"):
            while True:
                found += replication.take(TIMEOUT)
        assert kinds(found) == "BRIC"
        assert replication.idle_at is None


def test_a_server_that_says_nothing_is_given_up(place: Place) -> None:
    place.prepare(TABLE)
    with place.replication(timeout=6, silence=0.2) as replication:
        replication.start(0)
        ((walsender,),) = place.sql(f"select active_pid from pg_replication_slots where slot_name = '{place.slot}'")
        os.kill(walsender, signal.SIGSTOP)
        try:
            with pytest.raises(PostgresUnreachable, match="nothing heard"):
                take_until(replication, b"C")
        finally:
            os.kill(walsender, signal.SIGCONT)


def test_a_server_that_never_answers_is_given_up() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        dsn = f"postgresql://user@127.0.0.1:{mute.getsockname()[1]}/x"
        replication = Replication(ReplicationSettings(dsn=dsn, slot="s", publications=["p"], timeout=0.3))
        with pytest.raises(PostgresUnreachable, match=r"no connection within 0\.3 s"):
            replication.start(0)


def test_closing_is_quick_and_frees_the_slot_at_any_moment(place: Place) -> None:
    place.prepare(TABLE)
    place.sql("insert into t select g, repeat('x', 1000) from generate_series(1, 5000) g")
    for bound in (10, 100_000):
        replication = place.replication(max_frames=bound)
        replication.start(0)
        replication.take(1)
        replication.close()
        replication.close()
        wait_for(
            lambda: (
                place.sql(f"select active from pg_replication_slots where slot_name = '{place.slot}'") == [(False,)]
            ),
            "the slot is free",
        )
    assert not wal_threads()


READER = """
import sys
from strandline.cdc.replication import Replication, ReplicationSettings
replication = Replication(ReplicationSettings(dsn=sys.argv[1], slot=sys.argv[2], publications=["changes"]))
replication.start(0)
end = 0
while True:
    for _, _, data in replication.take(1):
        if data[:1] == b"I":
            print("row", data[13:].decode(), flush=True)
        elif data[:1] == b"C":
            end = int.from_bytes(data[10:18], "big")
            print("end", end, flush=True)
            replication.acknowledge(end)
"""


def read_and_kill(place: Place) -> list[tuple[str, int]]:
    """What a reader has printed until it was killed: not before 60 rows, and something of them was acknowledged."""
    acknowledged = place.confirmed()
    printed: list[tuple[str, int]] = []
    command = [sys.executable, "-c", READER, place.dsn, place.slot]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            for line in reader.stdout:
                if line.endswith("\n"):
                    word, value = line.split()
                    printed.append((word, int(value)))
                if len(printed) == 120:
                    wait_for(lambda: place.confirmed() > acknowledged, "something is acknowledged")
                    reader.kill()
        finally:
            reader.kill()
    assert reader.returncode == -signal.SIGKILL
    wait_for(lambda: not place.is_read(), "the slot is free")
    return printed


def test_after_kill_9_nothing_is_lost_and_nothing_acknowledged_comes_again(place: Place) -> None:
    place.prepare("create table t (id int primary key)")
    stopping = Event()
    written = -1

    def write() -> None:
        """One row a transaction, also while readers are killed: none of them can have come to the end.

        A reader that has acknowledged the last row before it is killed leaves nothing for the next one to read.
        """
        nonlocal written
        with psycopg.connect(place.dsn, autocommit=True) as connection:
            for number in itertools.count():
                if stopping.is_set():
                    break
                connection.execute("insert into t values (%s)", (number,))
                written = number

    # The row of each position that a reader may have acknowledged. Another one would be a KeyError.
    row_at = {place.confirmed(): -1}
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(3):
                first = row_at[place.confirmed()] + 1
                printed = read_and_kill(place)
                rows = [value for word, value in printed if word == "row"]
                assert rows == list(range(first, first + len(rows)))
                row_at |= dict(zip((value for word, value in printed if word == "end"), rows, strict=False))
            # The statement that runs while the last reader is killed may have been committed before.
            before = written + 1
            wait_for(lambda: written > before or writing.done(), "more is written after the last kill")
        finally:
            stopping.set()
        writing.result(TIMEOUT)
    first = row_at[place.confirmed()] + 1
    rest: list[int] = []
    with place.reading() as replication:
        while not rest or rest[-1] < written:
            rest += [int(frame[2][13:]) for frame in take_until(replication, b"C") if frame[2][:1] == b"I"]
    assert rest == list(range(first, written + 1))


def test_a_server_with_too_little_in_its_log_is_refused_and_a_restart_is_survived(open_dir: Path) -> None:
    server = Postgres(open_dir / "postgres", settings={"wal_level": "replica"})
    server.start(Event())
    try:
        with Session(server.url) as session, pytest.raises(CannotReplicate) as error:
            check_server(session)
        assert "wal_level = replica; run: ALTER SYSTEM SET wal_level = 'logical'" in str(error.value)
        file = open_dir / "cdc.yaml"
        file.write_text(f"postgres: {{dsn: '{server.url}'}}\nkinesis: {{stream: s}}\ncheckpoint: nowhere\n")
        told = run_warm("cdc", "run", "--config", file)
        assert (told.returncode, told.stderr.splitlines()) == (1, [f"strandline: {error.value}"])
        server.stop()
        server.overrides.clear()
        server.start(Event())
        with Place(server) as place:
            place.prepare(TABLE)
            place.sql("insert into t values (1)")
            with place.replication() as replication:
                replication.start(0)
                end = end_of(take_until(replication, b"C")[-1])
                replication.acknowledge(end)
                wait_for(lambda: place.confirmed() == end, "it is acknowledged")
                place.sql("insert into t values (2)")
                take_until(replication, b"C")
                # Postgres would not end while we, in good health, do not acknowledge what we have not delivered.
                server.stop()
                with pytest.raises(ConnectionLost, match="the server shuts down"):
                    take_until(replication, b"C")
            server.start(Event())
            with place.replication() as replication:
                replication.start(end)
                assert kinds(take_until(replication, b"C")) == "BRIC"
    finally:
        server.stop()
