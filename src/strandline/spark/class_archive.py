"""`python -m strandline.spark.class_archive`: prepare the class archive of Spark's JVM, once.

Runs what our commands run on Spark, in small, and has the JVM write down the classes that it loaded for it.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.errors import Stalled, StrandlineError
from strandline.locks import try_lock
from strandline.spark.session import configured, jvm_of, launch
from strandline.spark.starting import JAVA_OPTIONS, PREPARING, archive_path, given_up
from strandline.stack.cache import cache_dir
from strandline.stalls import StallDetector, bytes_below

SILENCE_S = timedelta(minutes=10).total_seconds()
LOOK_EVERY = 0.1
EPOCHS = 3
# Each environment has one of its own, and is gone one day.
KEPT = 4


class Few(DataSource):
    """One row an epoch, and a sink that takes it."""

    @classmethod
    def name(cls) -> str:
        return "few"

    def schema(self) -> str:
        return "number bigint, text string, bytes binary, at timestamp"

    def streamReader(self, schema: StructType) -> "FewReader":  # noqa: ARG002, N802
        return FewReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> "FewWriter":  # noqa: ARG002, N802
        return FewWriter()


class FewReader(DataSourceStreamReader):
    """Counts up."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: ARG002, N802
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # noqa: ARG002
        return [InputPartition(end["at"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        kinds = [pa.int64(), pa.string(), pa.binary(), pa.timestamp("us", "UTC")]
        values: list[Any] = [partition.value, "text", b"bytes", 0]
        arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["number", "text", "bytes", "at"])


class FewWriter(DataSourceStreamArrowWriter):
    """Takes all."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def prepare() -> None:
    """Make the archive, unless it is there or somebody is at it."""
    archive = archive_path()
    lock = try_lock(archive.with_suffix(".lock"), 0.0)
    if lock is None or archive.exists() or given_up(archive).exists():
        return
    work = Path(tempfile.mkdtemp(prefix="preparing-", dir=cache_dir()))
    try:
        _run(work)
        (work / "classes.jsa").rename(archive)
        for old in sorted(archive.parent.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink(missing_ok=True)
    except (StrandlineError, PySparkException, Py4JError, OSError) as error:
        given_up(archive).write_text(f"{error}\n")
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _run(work: Path) -> None:
    options = {
        JAVA_OPTIONS: f"-XX:ArchiveClassesAtExit={work / 'classes.jsa'} -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "1",
    }
    context = launch(configured("strandline classes", "local[1]", options), work / "spark.log")
    gateway: Any = context._gateway
    try:
        spark = SparkSession(context)
        spark.dataSource.register(Few)
        _stream(spark, work)
        _batch(spark, work)
    finally:
        context.stop()
        # It writes when it ends, and ends when nobody can talk to it any more.
        gateway.proc.stdin.close()
        detector = StallDetector(SILENCE_S, lambda: bytes_below(work), pid=gateway.proc.pid)
        while gateway.proc.poll() is None:
            if (problem := detector.problem()) is not None:
                gateway.proc.kill()
                raise Stalled("Spark's JVM", problem, "it wrote no class archive")
            time.sleep(LOOK_EVERY)


def _stream(spark: SparkSession, work: Path) -> None:
    rows = spark.readStream.format("few").load()
    query = rows.writeStream.format("few").option("checkpointLocation", str(work / "checkpoint")).start()
    detector = StallDetector(SILENCE_S, lambda: query.lastProgress, pid=jvm_of(spark.sparkContext).pid)
    while (last := query.lastProgress) is None or last["batchId"] < EPOCHS:
        problem = detector.problem()
        if problem is not None or not query.isActive:
            raise StrandlineError(f"Spark runs no stream: {query.exception() or f'it {problem}'}")
        time.sleep(LOOK_EVERY)
    query.stop()


def _batch(spark: SparkSession, work: Path) -> None:
    rows = spark.range(100).selectExpr("id", "id % 7 as kind", "cast(id as string) as text")
    rows.mapInArrow(lambda batches: batches, rows.schema).createOrReplaceTempView("few")
    spark.sql("select kind, count(*), max(text) from few group by kind order by kind").toArrow()
    rows.write.parquet(str(work / "rows"))


if __name__ == "__main__":
    os.environ[PREPARING] = "1"
    os.nice(19)
    prepare()
