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

from strandline.cdc.acknowledged import acknowledged, create_acknowledged_table
from strandline.cdc.checkpoint import Checkpoint
from strandline.cdc.config import CdcConfig
from strandline.cdc.lease import Leadership, acquire, create_lease_table, lease_status
from strandline.cdc.publication import check_dead_letters, check_publications, create_publication
from strandline.cdc.session import Session
from strandline.cdc.slot import check_server, create_slot, identified, look, take_over
from strandline.cdc.snapshot import HeldSnapshot, make_slot, take_again
from strandline.cdc.snapshot_record import SnapshotRecord, SnapshotState, snapshot_state
from strandline.cdc.watch import Watch
from strandline.cli.line import ProgressLine
from strandline.cli.signals import on_stop_request, once
from strandline.clock import SystemClock
from strandline.config import load
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    ConnectionLost,
    NotLeading,
    OptionError,
    PostgresUnreachable,
    PublishingEnded,
    SlotBusy,
    SnapshotLost,
    SparkEnded,
)
from strandline.wire.pgoutput import lsn_text

ASK_EVERY = timedelta(seconds=5)
REST_S = 1.0
# What another instance, or Postgres when it is back, may mend.
PASSING = (NotLeading, PublishingEnded, SnapshotLost, SparkEnded, ConnectionLost, PostgresUnreachable, SlotBusy)

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
    settings = load(config, CdcConfig)
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
    leadership = acquire(dsn, config.lease_name, holder, wait=ASK_EVERY, term=term, stop=stop)
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
    """See that all is there that Postgres must have, or make it where the file says so."""
    postgres = config.postgres
    wanted = postgres.wanted()
    with Session(postgres.url()) as session:
        check_server(session)
        if wanted is not None:
            create_publication(session, wanted)
            create_lease_table(session)
            create_acknowledged_table(session)
        check_publications(session, [postgres.publication])
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
    record = SnapshotRecord(dsn, slot, leadership.number)
    with Session(dsn) as session:
        state = look(session, slot)
        if state is not None:
            take_over(session, slot)
        due = snapshot_state(session, slot)
        delivered = acknowledged(session, identified(session, slot)[0])
    is_unfinished = due is not None and due.finished is None
    if state is not None:
        if not is_unfinished:
            return None
        if config.snapshot == "never":
            _say(f"the snapshot of '{slot}' is not finished ({due}), and is left so: snapshot is 'never'")
            return None
        _say(
            f"the snapshot of '{slot}' was lost before it was finished ({due}): the other tables are read again, and "
            "then the changes since the slot was made"
        )
        return take_again(dsn, record)
    if (done := Checkpoint(Path(config.checkpoint)).last()) is not None:
        delivered = max(delivered or 0, done.mark.end)
    if delivered is not None:
        raise ChangesLost(f"slot '{slot}' is gone: changes after {lsn_text(delivered)} are lost", slot)
    if config.snapshot == "never":
        create_slot(dsn, slot).close()
        _say(f"slot '{slot}' is made: changes from now on are published")
        return None
    if due is not None and due.start is not None and is_unfinished:
        _say(
            f"slot '{slot}' is gone before its snapshot was finished ({due}): all begins anew, and of rows that were "
            f"sent and then deleted, since {lsn_text(due.start)}, nobody will tell"
        )
    leadership.check()
    held = make_slot(dsn, record)
    _say(f"slot '{slot}' is made: the rows that are there are published, and then the changes from now on")
    return held


def progress(told: dict[str, Any]) -> str:
    """What is going on."""
    rate = told.get("processedRowsPerSecond") or 0.0
    return f"epoch {told['batchId']:,}   {told['numInputRows']:,} changes   {rate:,.0f} a second"


@app.command
def status(*, config: Path) -> None:
    """Show who leads, how far it has come, and how much lies behind.

    Parameters
    ----------
    config
        The file that `strandline cdc run` was given.
    """
    settings = load(config, CdcConfig)
    with Session(settings.postgres.url()) as session:
        lease = lease_status(session, settings.lease_name)
        slot = look(session, settings.postgres.slot)
        snapshot = snapshot_state(session, settings.postgres.slot)
    lines = {"leader": "nobody has led yet"}
    if lease is not None:
        left = (lease.lease.expires - lease.now) / 1e9
        who = f"{lease.lease.holder}, number {lease.lease.leadership}"
        lines["leader"] = f"{who}, for {left:.1f} s more unless renewed" if left > 0 else f"nobody; the last was {who}"
    lines["slot"] = f"'{settings.postgres.slot}' does not exist"
    if slot is not None:
        reader = f"read by process {slot.reader}" if slot.reader else "read by nobody"
        lines["slot"] = f"{slot.identity.slot} of {slot.identity.database}, {reader}"
        lines["acknowledged"] = f"{lsn_text(slot.confirmed)}, {slot.lag:,} bytes of log behind"
    if snapshot is not None:
        lines["snapshot"] = _snapshot_line(snapshot)
    checkpoint = Checkpoint(Path(settings.checkpoint))
    if (done := checkpoint.last()) is not None:
        ago = (clock.wall() - done.begun) / 1e9
        lines["delivered"] = (
            f"{lsn_text(done.mark.lsn)} {done.mark.ordinal}, epoch {done.number}, begun {ago:.1f} s ago"
        )
    if (open_ := checkpoint.unfinished()) is not None:
        ago = (clock.wall() - open_.begun) / 1e9
        lines["unfinished"] = (
            f"up to {lsn_text(open_.mark.lsn)} {open_.mark.ordinal}, epoch {open_.number}, for {ago:.1f} s"
        )
    for name, text in lines.items():
        print(f"{name:<13} {text}")


def _snapshot_line(snapshot: SnapshotState) -> str:
    if snapshot.finished is not None:
        return f"finished {(clock.wall() - snapshot.finished) / 1e9:.1f} s ago: {snapshot}"
    return f"under way since {(clock.wall() - snapshot.begun) / 1e9:.1f} s: {snapshot}"


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
