"""The pipeline of `strandline cdc`: changes of Postgres into Kinesis, as one query of Spark, for as long as we lead."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.cdc.config import CdcConfig
from strandline.cdc.lease import Leadership
from strandline.cdc.snapshot import HeldSnapshot, take_again
from strandline.cdc.snapshot_record import SnapshotRecord
from strandline.core.spark_master import is_local
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    DeadLetterFailed,
    MalformedChange,
    OptionError,
    PublishingEnded,
    SnapshotLost,
    SpillFailed,
    StrandlineError,
    StreamRefused,
)
from strandline.spark.kinesis import Kinesis
from strandline.spark.postgres_wal import PostgresWal
from strandline.spark.refusal import own_words, reason_in
from strandline.spark.session import jvm_of, opened
from strandline.spark.snapshot import Snapshot
from strandline.spark.starting import JAVA_OPTIONS

if TYPE_CHECKING:
    import subprocess

LOOK_EVERY = 0.1
# What the sink takes of a row: the others would be turned from columns to rows and back for nothing.
WANTED = ("lsn", "ordinal", "committed", "partition_key", "event")
# So often in a row a query may end without an epoch, or a snapshot without another table finished, before another
# instance is to try.
MOST_FAILURES = 3
OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    # A batch is one task: its worker stays, with its connections, from batch to batch.
    "spark.sql.shuffle.partitions": "1",
    "spark.speculation": "false",
    # The JVM only passes rows on, and a new leader is in haste: a second compiler takes half as much as all else.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1",
}
OURS = {
    # What is on its way when we are told to stop is sent to its end, unless that takes longer.
    "spark.sql.streaming.stopTimeout": "10000",
    # By what Spark tells while it has nothing to do we know that it does not stand still.
    "spark.sql.streaming.noDataProgressEventInterval": "10000",
}
# Then Spark has ended, or its JVM is killed: it may not answer any more, and whoever asks it waits without an end.
END_WITHIN_S = 60.0

# What somebody has to mend before it is worth another try.
LASTING = {
    error.__name__
    for error in (
        CannotReplicate, ChangesLost, DeadLetterFailed, MalformedChange, SpillFailed, StreamRefused,
    )
}  # fmt: skip

Tell = Callable[[dict[str, Any]], None]

log = logging.getLogger(__name__)


def publish(
    config: CdcConfig,
    leadership: Leadership,
    stop: Event,
    tell: Tell,
    *,
    snapshot: HeldSnapshot | None = None,
    say: Callable[[str], None] = print,
    figures: str | None = None,
) -> None:
    """Publish until told to stop, the rows of a snapshot first where there is one.

    Raises NotLeading when another leads, or what the query ended with. Each epoch is told as Spark tells it; `figures`
    is where it is told what became of it.
    """
    options = {**OPTIONS, **config.spark.settings, **OURS}
    sources = (PostgresWal, Kinesis)
    with (
        ended_in_time(lambda: leadership.lost.is_set() or stop.is_set()) as watched,
        opened("strandline cdc", master=config.spark.master, options=options, sources=sources) as spark,
        _in_our_words(),
    ):
        watched(jvm_of(spark.sparkContext))
        if snapshot is not None:
            send_rows(spark.sparkContext, config, snapshot, leadership, stop, say=say, figures=figures)
        failures = 0
        while not stop.is_set():
            leadership.check()
            query = _begun(spark, config, leadership, figures)
            try:
                watch(query, leadership, stop, tell)
            except PublishingEnded as error:
                # To begin again here takes a second, and with another session or leader many.
                failures = failures + 1 if query.lastProgress is None else 1
                if failures > MOST_FAILURES:
                    raise
                log.warning("%s; it is begun again", error)
            finally:
                _stop(query, leadership)


@contextmanager
def ended_in_time(
    is_over: Callable[[], bool], within: float = END_WITHIN_S
) -> Iterator[Callable[["subprocess.Popen[bytes]"], None]]:
    """Kills a process that it is told of where this has not ended so many seconds after all was to be over."""
    has_ended = Event()

    def watch(process: "subprocess.Popen[bytes]") -> None:
        while not has_ended.wait(LOOK_EVERY):
            if is_over():
                if not has_ended.wait(within):
                    log.warning("Spark's JVM has not ended within %g s, and is killed", within)
                    process.kill()
                return

    def begin(process: "subprocess.Popen[bytes]") -> None:
        threading.Thread(target=watch, args=(process,), name="strandline-jvm", daemon=True).start()

    try:
        yield begin
    finally:
        has_ended.set()


def send_rows(
    context: SparkContext,
    config: CdcConfig,
    held: HeldSnapshot,
    leadership: Leadership,
    stop: Event,
    *,
    say: Callable[[str], None],
    figures: str | None = None,
) -> None:
    """Send the rows that are there: under the snapshot given and, where it is lost, the rest under another.

    Gives up each of them. Raises SnapshotLost when they are lost again and again.
    """
    dsn = config.postgres.url()
    record = SnapshotRecord(dsn, config.postgres.slot, leadership.number, leadership.name)
    finished = failures = 0
    while True:
        try:
            with held, _in_our_words():
                Snapshot(context, config, held, leadership).send(stop, say, figures)
            return
        except SnapshotLost as error:
            before, state = finished, record.state()
            finished = 0 if state is None else state.tables_finished
            failures = 1 if finished > before else failures + 1
            if failures > MOST_FAILURES:
                raise
            say(f"{error}; the tables that are not finished are read again, under another snapshot")
        if stop.is_set():
            return
        leadership.check()
        held = take_again(dsn, record)


def _begun(spark: SparkSession, config: CdcConfig, leadership: Leadership, figures: str | None) -> StreamingQuery:
    source = spark.readStream.format("postgres_wal").option("columns", ",".join(WANTED))
    driver = spark.sparkContext.getConf().get("spark.driver.host")
    options = {**config.source_options(leadership.number), **served_at(config.spark.master, driver)}
    rows = source.options(**options).load()
    return (
        rows.writeStream.format("kinesis")
        .options(**config.sink_options(leadership.number, figures))
        .option("checkpointLocation", str(Path(config.checkpoint).absolute()))
        .start()
    )


def served_at(master: str, driver: str | None) -> dict[str, str]:
    """Where tasks fetch their rows: at loopback, unless they run on other machines."""
    return {} if is_local(master) or driver is None else {"serveAt": driver}


def _stop(query: StreamingQuery, leadership: Leadership) -> None:
    try:
        query.stop()
    except (PySparkException, Py4JError, OSError):
        # Where it cannot be stopped since it stands still, that is what there is to tell.
        leadership.check(once=True)
        raise


def watch(query: StreamingQuery, leadership: Leadership, stop: Event, tell: Tell) -> None:
    """Tell of each epoch until told to stop. Raises NotLeading when another leads, or what the query ended with."""
    told, last = -1, None
    while not stop.wait(LOOK_EVERY):
        # While there is nothing to do, Spark tells of that too, every 10 s.
        leadership.check(sign=(query.runId, last and last["timestamp"]))
        if not query.isActive:
            # Where all of us stood still meanwhile, it has found what another leader has done, and not a loss.
            leadership.check(once=True)
            raise cause(str(query.exception() or "nothing was told"))
        last = query.lastProgress
        if last is not None and last["batchId"] != told:
            # Short epochs may have passed between two looks.
            for progress in query.recentProgress if last["batchId"] > told + 1 >= 1 else [last]:
                if told < progress["batchId"] <= last["batchId"]:
                    told = progress["batchId"]
                    tell(dict(progress))


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Tell an error of Spark itself, of a query that could not even be begun, as one of ours.

    That is while its JVM is there, which is asked for the words; that it is not is told by whoever started it.
    """
    try:
        yield
    except Py4JNetworkError:
        raise
    except (PySparkException, Py4JError) as error:
        raise cause(str(error)) from error


def cause(told: str) -> StrandlineError:
    """What ended a query or a job, in our own words where Spark quotes them."""
    name, line = own_words(told) or ("", reason_in(told))
    if name == SnapshotLost.__name__:
        return SnapshotLost(line)
    if name == OptionError.__name__:
        return OptionError(line)
    return StrandlineError(line) if name in LASTING else PublishingEnded(line)
