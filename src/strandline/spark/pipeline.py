"""The pipeline of `strandline cdc`: changes of Postgres into Kinesis, as one query of Spark, for as long as we lead."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from strandline.cdc.config import CdcConfig
from strandline.cdc.lease import Leadership
from strandline.cdc.snapshot import HeldSnapshot
from strandline.errors import (
    CannotReplicate,
    ChangesLost,
    DeadLetterFailed,
    MalformedChange,
    OptionError,
    PublishingEnded,
    SpillFailed,
    StrandlineError,
    StreamRefused,
)
from strandline.spark.kinesis import Kinesis
from strandline.spark.postgres_wal import PostgresWal
from strandline.spark.refusal import own_words, refused_in_one_line
from strandline.spark.session import opened
from strandline.spark.snapshot import Snapshot
from strandline.spark.starting import JAVA_OPTIONS

LOOK_EVERY = 0.1
# What the sink takes of a row: the others would be turned from columns to rows and back for nothing.
WANTED = ("lsn", "ordinal", "committed", "partition_key", "event")
OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    # A batch is one task: its worker stays, with its connections, from batch to batch.
    "spark.sql.shuffle.partitions": "1",
    "spark.speculation": "false",
    # The JVM only passes rows on, and a new leader is in haste: a second compiler takes half as much as all else.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1",
}
# What is on its way when we are told to stop is sent to its end, unless that takes longer.
STOP_WITHIN_MS = 10_000

# What somebody has to mend before it is worth another try.
LASTING = {
    error.__name__
    for error in (
        CannotReplicate, ChangesLost, DeadLetterFailed, MalformedChange, OptionError, SpillFailed, StreamRefused,
    )
}  # fmt: skip

Tell = Callable[[dict[str, Any]], None]


def publish(
    config: CdcConfig,
    leadership: Leadership,
    stop: Event,
    tell: Tell,
    *,
    snapshot: HeldSnapshot | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Publish until told to stop, the rows of a snapshot first where there is one.

    Raises NotLeading when another leads, or what the query ended with.
    """
    options = {**OPTIONS, **config.spark.settings, "spark.sql.streaming.stopTimeout": str(STOP_WITHIN_MS)}
    sources = (PostgresWal, Kinesis)
    with (
        opened("strandline cdc", master=config.spark.master, options=options, sources=sources) as spark,
        refused_in_one_line(),
    ):
        if snapshot is not None:
            try:
                Snapshot(spark.sparkContext, config, snapshot, leadership).send(stop, say)
            except (PySparkException, Py4JError) as error:
                raise _cause(str(error)) from error
            snapshot.close()
        if stop.is_set():
            return
        source = spark.readStream.format("postgres_wal").option("columns", ",".join(WANTED))
        rows = source.options(**config.source_options()).load()
        query = (
            rows.writeStream.format("kinesis")
            .options(**config.sink_options(leadership.number))
            .option("checkpointLocation", str(Path(config.checkpoint).absolute()))
            .start()
        )
        try:
            _watch(query, leadership, stop, tell)
        finally:
            query.stop()


def _watch(query: StreamingQuery, leadership: Leadership, stop: Event, tell: Tell) -> None:
    told = -1
    while not stop.wait(LOOK_EVERY):
        leadership.check()
        if not query.isActive:
            raise _cause(str(query.exception() or "nothing was told"))
        last = query.lastProgress
        if last is not None and last["batchId"] != told:
            told = last["batchId"]
            tell(dict(last))


def _cause(told: str) -> StrandlineError:
    """What ended a query or a job, in our own words where Spark quotes them."""
    name, line = own_words(told) or ("", told.strip().splitlines()[0][:500])
    return StrandlineError(line) if name in LASTING else PublishingEnded(line)
