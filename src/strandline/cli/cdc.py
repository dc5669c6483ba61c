"""`strandline cdc run` and `strandline cdc status`: changes of Postgres in Kinesis, by one of several instances."""

import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

from cyclopts import App

from strandline.cdc import tables
from strandline.cdc.acknowledged import acknowledged, create_acknowledged_table
from strandline.cdc.checkpoint import Checkpoint, Epoch
from strandline.cdc.config import CdcConfig, files_of
from strandline.cdc.lease import PATIENCE, Leadership, acquire, create_lease_table, lease_status
from strandline.cdc.letters import put_away
from strandline.cdc.mark import Mark
from strandline.cdc.publication import check_dead_letters, check_publications, create_publication
from strandline.cdc.published import check_keys
from strandline.cdc.session import Session
from strandline.cdc.slot import SlotState, check_server, create_slot, identified, look, take_over
from strandline.cdc.snapshot import HeldSnapshot, make_slot, take_again
from strandline.cdc.snapshot_record import SnapshotRecord, SnapshotState, snapshot_state
from strandline.cdc.watch import Watch
from strandline.cli.line import ProgressLine
from strandline.cli.signals import on_stop_request, once
from strandline.clock import SystemClock
from strandline.config import load
from strandline.core.beginning import Found, Lost, Make, ReadOn, RowsTooLate, TakeAgain, Unfinished, begin
from strandline.core.spark_master import is_local
from strandline.counts import counted
from strandline.directories import check_directory
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    ConnectionLost,
    NotLeading,
    OptionError,
    PostgresHindered,
    PostgresUnreachable,
    PublishingEnded,
    SlotBusy,
    SlotDelayed,
    SnapshotLost,
    SparkEnded,
)
from strandline.wire.pgoutput import lsn_text

ASK_EVERY = timedelta(seconds=5)
REST_S = 1.0
# What another instance, or Postgres when it is back, may mend.
PASSING = (
    NotLeading, PublishingEnded, SnapshotLost, SparkEnded, ConnectionLost, PostgresHindered, PostgresUnreachable,
    SlotBusy, SlotDelayed,
)  # fmt: skip
ANEW = (
    "set snapshot: never, or begin anew: drop the slot (select pg_drop_replication_slot('{slot}')), and delete the "
    "checkpoint's directory and the slot's row of strandline.acknowledged"
)

clock = SystemClock()
app = App(name="cdc")


@app.command
def run(*, config: Path) -> None:
    """Publish the changes of a database to a stream for as long as this instance leads; wait while another does.

    Parameters
    ----------
    config
        The file that says what, where and how: see docs/cdc.md.
    """
    settings = files_of(load(config, CdcConfig), config.parent)
    stop = threading.Event()
    # PySpark takes Ctrl-C for itself where it starts in the main thread.
    working = ThreadPoolExecutor(1)

    @once
    def ask() -> None:
        _say("ending in good order; once more ends at once")
        stop.set()

    with on_stop_request(ask), Watch(settings) as watch:
        if watch.address is not None:
            _say(f"{watch.address}/metrics")
        prepare(settings)
        working.submit(_serve, settings, stop, watch).result()


def _serve(config: CdcConfig, stop: threading.Event, watch: Watch) -> None:
    """Lead whenever we can, until told to stop."""
    # Loaded while there is time; who waits to lead has no session of Spark.
    import strandline.spark.pipeline  # noqa: F401, PLC0415

    _say(f"waiting to lead '{config.lease_name}'")
    told = ""
    while not stop.is_set():
        try:
            watch.waits(None)
            _lead(config, stop, watch)
            told = ""
        except PASSING as error:
            watch.waits(str(error))
            if str(error) != told:
                told = str(error)
                _say(f"{told}; waiting to lead again")
            stop.wait(REST_S)


def _lead(config: CdcConfig, stop: threading.Event, watch: Watch) -> None:
    """Wait for a while to lead; publish for as long as we do."""
    dsn, holder = config.postgres.url(), f"{socket.gethostname()}:{os.getpid()}"
    term = timedelta(seconds=config.leadership.lease_s)
    # Before we give up, who is frozen is killed, and Spark runs its task again.
    patience = max(PATIENCE, 3 * timedelta(seconds=config.spark.frozen_after_s))
    leadership = acquire(dsn, config.lease_name, holder, wait=ASK_EVERY, term=term, patience=patience, stop=stop)
    if leadership is None:
        return
    with leadership, watch.leading(leadership):
        snapshot = take_slot(config, leadership)
        _say(f"leading '{config.lease_name}', number {leadership.number}")
        # Not before it is needed: who waits to lead does without Spark.
        from strandline.spark.pipeline import publish  # noqa: PLC0415

        line = ProgressLine(clock)

        def tell(told: dict[str, Any]) -> None:
            watch.epoch(told)
            line.show(lambda: progress(told))

        try:
            publish(config, leadership, stop, tell, snapshot=snapshot, say=_say, figures=watch.figures)
        finally:
            line.clear()
            if snapshot is not None:
                # Where Spark has not even started.
                snapshot.close()


def prepare(config: CdcConfig) -> None:
    """See that all is there that we and Postgres must have, or make it where the file says so."""
    postgres = config.postgres
    wanted = postgres.wanted()
    check_directory(Path(config.checkpoint), "checkpoint", make=True)
    if config.spill.directory is not None:
        check_directory(Path(config.spill.directory), "spill.directory")
    if config.dead_letters is not None and config.dead_letters.directory is not None and is_local(config.spark.master):
        # Else it is on other machines.
        check_directory(Path(config.dead_letters.directory), "dead_letters.directory", make=True)
    with Session(postgres.url()) as session:
        check_server(session)
        if wanted is not None:
            create_publication(session, wanted)
            create_lease_table(session)
            create_acknowledged_table(session)
        check_publications(session, [postgres.publication])
        if config.events.partition_key is not None:
            check_keys(session, postgres.publication, config.events.partition_key)
        if config.dead_letters is not None and config.dead_letters.table is not None:
            check_dead_letters(session, postgres.publication, config.dead_letters.table)
        lease_status(session, config.lease_name)
        acknowledged(session, identified(session, postgres.slot)[0])
        if wanted is None and look(session, postgres.slot) is None:
            raise CannotReplicate(
                f"slot '{postgres.slot}' does not exist", "have it created (postgres.create in the file)"
            )
    check_stream(config)


def check_stream(config: CdcConfig) -> None:
    """Refuse a stream that is not there, or not ours, before anybody leads."""
    # Not before it is needed: what signs requests is large.
    from strandline.cdc.kinesis import Sender  # noqa: PLC0415

    kinesis = config.kinesis
    with Sender(kinesis.stream, region=kinesis.region, endpoint_url=kinesis.endpoint_url) as sender:
        found = sender.describe()
    if found is not None and found.max_record_bytes < kinesis.max_record_bytes:
        raise OptionError(
            f"kinesis.max_record_bytes is {kinesis.max_record_bytes:,}, and stream '{kinesis.stream}' takes records of "
            f"{found.max_record_bytes:,} bytes: change the one or the other"
        )


def take_slot(config: CdcConfig, leadership: Leadership) -> HeldSnapshot | None:
    """End whoever reads the slot: we lead. Where there is none, make it. The snapshot that has to come first."""
    dsn, slot = config.postgres.url(), config.postgres.slot
    record = SnapshotRecord(dsn, slot, leadership.number, leadership.name)
    with Session(dsn) as session:
        has_slot = look(session, slot) is not None
        if has_slot:
            take_over(session, slot)
        due = snapshot_state(session, slot)
        known = acknowledged(session, identified(session, slot)[0])
    done = None if has_slot else Checkpoint(Path(config.checkpoint)).last()
    unfinished = None if due is None or due.finished is not None else Unfinished(due.start)
    found = Found(has_slot, unfinished, acknowledged=known, checkpointed=None if done is None else done.mark.end)
    # Who stood still meanwhile has found what was so once, and would stop for it, or take what is another's.
    leadership.check(once=True)
    match begin(found, wants_rows=config.snapshot == "initial"):
        case ReadOn(leaves_unfinished):
            if leaves_unfinished:
                _say(f"the snapshot of '{slot}' is not finished ({due}), and is left so: snapshot is 'never'")
            return None
        case TakeAgain():
            _say(
                f"the snapshot of '{slot}' was lost before it was finished ({due}): the other tables are read again, "
                "and then the changes since the slot was made"
            )
            return take_again(dsn, record)
        case RowsTooLate(published):
            problem = f"the snapshot of '{slot}' is not finished ({due}), and changes up to {lsn_text(published)} came"
            raise CannotReplicate(f"{problem} after it was left so: no row may follow them", ANEW.format(slot=slot))
        case Lost(delivered):
            raise ChangesLost(f"slot '{slot}' is gone: changes after {lsn_text(delivered)} are lost", slot)
        case Make(with_rows, abandoned):
            return _make(config, leadership, record, with_rows=with_rows, abandoned=abandoned and due)


def _make(
    config: CdcConfig,
    leadership: Leadership,
    record: SnapshotRecord,
    *,
    with_rows: bool,
    abandoned: SnapshotState | None,
) -> HeldSnapshot | None:
    """Make the slot, as long as we lead; where rows come first, with the snapshot of its start."""
    dsn, slot = config.postgres.url(), config.postgres.slot
    if abandoned is not None and abandoned.start is not None:
        how = "all begins anew" if with_rows else "changes from now on are published"
        _say(
            f"slot '{slot}' is gone before its snapshot was finished ({abandoned}): {how}, and of rows that were sent "
            f"and then deleted, since {lsn_text(abandoned.start)}, nobody will tell"
        )
    leadership.check(once=True)
    if with_rows:
        held = make_slot(dsn, record)
        _say(f"slot '{slot}' is made: the rows that are there are published, and then the changes from now on")
        return held
    if abandoned is not None:
        record.forget()
    create_slot(dsn, slot).close()
    _say(f"slot '{slot}' is made: changes from now on are published")
    return None


def progress(told: dict[str, Any]) -> str:
    """What is going on."""
    rate = told.get("processedRowsPerSecond") or 0.0
    return f"epoch {told['batchId']:,}   {counted(told['numInputRows'], 'change')}   {rate:,.0f} a second"


@app.command
def status(*, config: Path) -> None:
    """Show who leads, how far it has come, and how much lies behind.

    Parameters
    ----------
    config
        The file that `strandline cdc run` was given.
    """
    settings = files_of(load(config, CdcConfig), config.parent)
    with Session(settings.postgres.url()) as session:
        # Before the first run there is no table, and nobody has led.
        lease = lease_status(session, settings.lease_name) if tables.is_there(session, "lease") else None
        slot = look(session, settings.postgres.slot)
        snapshot = snapshot_state(session, settings.postgres.slot)
        letters = None if settings.dead_letters is None else put_away(session, settings.dead_letters)
    lines = {"leader": "nobody has led yet"}
    if lease is not None:
        left = (lease.lease.expires - lease.now) / 1e9
        who = f"{lease.lease.holder}, number {lease.lease.leadership}"
        lines["leader"] = f"{who}, for {left:.1f} s more unless renewed" if left > 0 else f"nobody; the last was {who}"
    lines["slot"] = f"'{settings.postgres.slot}' does not exist"
    if slot is not None:
        reader = f"read by process {slot.reader}" if slot.reader else "read by nobody"
        lines["slot"] = f"{slot.identity.slot} of {slot.identity.database}, {reader}"
        lines["acknowledged"] = lsn_text(slot.confirmed)
    checkpoint = Checkpoint(Path(settings.checkpoint))
    done = checkpoint.last()
    if slot is not None:
        lines["lag"] = _lag(slot, done)
    if snapshot is not None:
        lines["snapshot"] = _snapshot_line(snapshot)
    if done is not None:
        ago = (clock.wall() - done.begun) / 1e9
        lines["delivered"] = f"{_place(done.mark)}, epoch {done.number}, begun {ago:.1f} s ago"
    if (open_ := checkpoint.unfinished()) is not None:
        ago = (clock.wall() - open_.begun) / 1e9
        lines["unfinished"] = f"up to {_place(open_.mark)}, epoch {open_.number}, for {ago:.1f} s"
    if letters is not None:
        lines["dead letters"] = letters
    for name, text in lines.items():
        print(f"{name:<13} {text}")


def _place(mark: Mark) -> str:
    """The id of the last event up to here; only where the log is, while there was none."""
    return f"{lsn_text(mark.lsn)} {mark.ordinal}" if mark.lsn else lsn_text(mark.end)


def _lag(slot: SlotState, done: Epoch | None) -> str:
    """How much log lies behind what is acknowledged, and how old what was delivered last is.

    How old is known from a checkpoint, if it is not one that another leader has passed.
    """
    told = f"{slot.lag:,} bytes of log"
    if not slot.lag:
        return f"{told}, 0.0 s"
    if done is None or done.mark.committed is None or done.mark.end < slot.confirmed:
        return told
    return f"{told}, {max(0.0, clock.wall() / 1e9 - done.mark.committed / 1e6):.1f} s"


def _snapshot_line(snapshot: SnapshotState) -> str:
    if snapshot.finished is not None:
        return f"finished {(clock.wall() - snapshot.finished) / 1e9:.1f} s ago: {snapshot}"
    return f"under way since {(clock.wall() - snapshot.begun) / 1e9:.1f} s: {snapshot}"


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
