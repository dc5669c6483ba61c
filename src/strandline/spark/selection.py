"""A selection of requests, replayed: any DataFrame of them, sent with its timing through the sink `http_replay`.

Spark gives a sink rows in whatever order and distribution the DataFrame has. So `replay` repartitions and sorts them,
and the sink refuses rows that are not so.
"""

import atexit
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls it)
from pyspark.sql.types import StructType

from strandline.core.spark_master import is_local
from strandline.counts import counted
from strandline.errors import OptionError, TargetError, check_type, did_you_mean
from strandline.replay.health import WhenDown
from strandline.replay.selection import HEADER_PROBLEM, LINE_PROBLEM, METHOD, NAME, PATH, QUERY, VALUE
from strandline.replay.target import Target
from strandline.replay.timeline import parse_speed
from strandline.spark.replay_sink import ANSWERED, COLUMNS, FAILED, RESULT, HttpReplay

HEAD_START_S = 5.0
DOWN_FOR_S = 60.0
LONGEST_S = 86_400 * 366
REQUIRED = ("connection", "time", "method", "path")
RESERVED = ("partition", "offset", "ordinal")
ORDER = ("time", *RESERVED)
INTEGERS = {"tinyint", "smallint", "int", "bigint", "void"}


def replay(
    frame: DataFrame,
    *,
    target: str,
    speedup: float | str = 1,
    results: str | Path | None = None,
    workers: int | None = None,
    head_start: float = HEAD_START_S,
    when_down: Literal["pause", "fail"] = "pause",
    down_for: float = DOWN_FOR_S,
) -> DataFrame:
    """Send the requests of a DataFrame with their relative timing, those of a connection in order; what became of them.

    It has the columns of `http_traffic`, or `connection`, `time`, `method`, `path` and where wanted `query`, `headers`,
    `body`; a column of the latter goes before what `request` says. All is sent once, now: each task at the same
    reference, `head_start` seconds from when the rows are at hand. `results` is a directory that all executors see.
    While the target cannot be reached, `pause` stops the clock, for at most `down_for` seconds: then this raises
    TargetError. `fail` lets it run on, and requests fail.
    """
    check_type("the selection", frame, DataFrame)
    check_type("target", target, str)
    _check_seconds("head_start", head_start)
    _check_seconds("down_for", down_for)
    if when_down not in (words := [word.value for word in WhenDown]):
        raise OptionError(f"when_down takes no {when_down!r}; {did_you_mean(str(when_down), words)}")
    spark = frame.sparkSession
    Target(target)
    workers = _checked_workers(spark, workers)
    _check_results(spark, results)
    speed = parse_speed(str(speedup))
    rows = _prepared(frame, workers).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        reference = _checked(rows)
        directory = _made(results)
        if reference is not None:
            spark.dataSource.register(HttpReplay)
            options = {
                "target": target,
                "speed": str(speed),
                "reference": str(reference),
                "begin": str(time.time_ns() + int(head_start * 1e9)),
                "partitions": str(workers),
                "results": str(directory),
                "whenDown": when_down,
                "downFor": str(down_for),
            }
            with _told_by(directory):
                rows.write.format(HttpReplay.name()).options(**options).mode("append").save()
    finally:
        rows.unpersist()
    return spark.read.schema(RESULT).json(str(directory))


def _check_seconds(name: str, value: object) -> None:
    # Neither what is no number nor what is without end.
    if not isinstance(value, int | float) or not 0 <= value <= LONGEST_S:
        raise OptionError(f"{name} takes seconds, from 0 up to {LONGEST_S:,} (a year), not {value!r}")


def _checked_workers(spark: SparkSession, workers: int | None) -> int:
    """How many tasks send, each in a slot of its own and once."""
    slots = spark.sparkContext.defaultParallelism
    workers = slots if workers is None else workers
    check_type("workers", workers, int)
    if not 1 <= workers <= slots:
        raise OptionError(f"{workers} workers, and Spark has {slots} slots: those without one would send too late")
    if spark.conf.get("spark.speculation", "false") == "true":
        raise OptionError("spark.speculation is on: a task that runs twice sends twice; switch it off")
    return workers


@contextmanager
def _told_by(directory: Path) -> Iterator[None]:
    """Where sending fails, raise what a task has told; the directory is gone then, for another attempt."""
    try:
        yield
    except Exception:
        failed = directory / FAILED
        line = failed.read_text() if failed.exists() else None
        with suppress(OSError):
            failed.unlink(missing_ok=True)
            directory.rmdir()
        if line is not None:
            raise TargetError(line) from None
        raise


def _check_results(spark: SparkSession, results: str | Path | None) -> None:
    if results is None:
        if not is_local(spark.sparkContext.master or ""):
            raise OptionError("results is missing: a directory that all executors see")
        return
    if not isinstance(results, str | Path):
        raise OptionError(f"results takes the path of a new directory, not {results!r}")
    if Path(results).exists():
        raise OptionError(f"results: {results} is there already; name a new directory")


def _made(results: str | Path | None) -> Path:
    if results is None:
        directory = Path(tempfile.mkdtemp(prefix="strandline-results-"))
        # The DataFrame reads it whenever it is asked, so it stays for as long as this process may ask.
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return directory
    directory = Path(results)
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise OptionError(f"results: {results} cannot be made: {error.strerror}") from None
    return directory


def _prepared(frame: DataFrame, workers: int) -> DataFrame:
    """The columns of the sink, repartitioned and sorted."""
    given = _given(frame)
    missing = [name for name in REQUIRED if name not in given]
    if missing:
        problem = did_you_mean(missing[0], frame.columns)
        raise OptionError(f"the DataFrame has no column '{missing[0]}' and no request from http_traffic; {problem}")
    for name, found in frame.dtypes:
        if name in RESERVED and found not in INTEGERS:
            problem = f"column '{name}' is {found}: {', '.join(RESERVED)} are whole numbers, the place in a capture"
            raise OptionError(f"{problem}; leave it out or name it otherwise")
    kinds = dict(COLUMNS)
    columns = [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items() if name != "number"]
    rows = frame.select(*columns, F.lit(None).cast("long").alias("number"))
    rows = rows.repartition(workers, "connection").sortWithinPartitions(*ORDER)
    # Fixed with the rows, so that a task that is run again gives requests the names that they had.
    return rows.withColumn("number", F.monotonically_increasing_id())


def _given(frame: DataFrame) -> Mapping[str, Column]:
    """What there is, by the names of the sink."""
    found: dict[str, Column] = {}
    request, response = _fields(frame, "request"), _fields(frame, "response")
    if request:
        found = {name: F.col(f"request.{name}") for name in request}
        found["time"] = F.col("request.first_byte")
        found["is_cut"] = F.col("request.body_sha256").isNotNull()
    found |= {name: F.col(f"`{name}`") for name in frame.columns if name not in {"request", "response"}}
    if response:
        parts = [F.col(f"response.{name}") if name in response else F.lit(None).alias(name) for name in ANSWERED]
        found["response"] = F.when(F.col("response").isNotNull(), F.struct(*parts))
    if "completeness" in found:
        found["is_cut"] = found.get("is_cut", F.lit(False)) | (found["completeness"] == "request_incomplete")
    if dict(frame.dtypes).get("headers") == "map<string,string>":
        found["headers"] = F.transform_values("headers", lambda _, value: F.array(value))
    return found


def _fields(frame: DataFrame, column: str) -> list[str]:
    """The names in a column that is a struct; none where it is none."""
    found = frame.schema[column].dataType if column in frame.columns else None
    return found.names if isinstance(found, StructType) else []


def _checked(rows: DataFrame) -> int | None:
    """The first time in nanoseconds, None where there are no rows. Computes the rows, so that they are at hand."""
    found = rows.agg(
        F.min(F.unix_micros("time")).alias("first"),
        F.count_if(F.col("is_cut")).alias("cut"),
        F.count_if(F.col("connection").isNull() | F.col("time").isNull()).alias("nowhere"),
        F.count_if(F.col("method").isNull() | F.col("path").isNull()).alias("unnamed"),
        *_broken("line", _is_no_line()),
        *_broken("header", _has_no_header()),
    ).first()
    assert found is not None  # noqa: S101  (an aggregate has one row)
    if found["nowhere"]:
        raise OptionError(f"{counted(found['nowhere'], 'row has', 'rows have')} no connection or no time")
    if found["unnamed"]:
        told = counted(found["unnamed"], "request has", "requests have")
        raise OptionError(f"{told} no method or no path; leave out: request.method IS NULL")
    if found["cut"]:
        told = counted(found["cut"], "request is", "requests are")
        raise OptionError(
            f"{told} not whole; raise 'bodyBytes' of http_traffic, or leave them out: "
            "request.body_sha256 IS NOT NULL OR completeness = 'request_incomplete'"
        )
    for kind, problem in (("line", LINE_PROBLEM), ("header", HEADER_PROBLEM)):
        if count := found[f"{kind}_count"]:
            told = counted(count, "request cannot be sent,", "requests cannot be sent, the first")
            raise OptionError(f"{told} of connection {found[f'{kind}_first']!r}: {problem}")
    return None if found["first"] is None else int(found["first"]) * 1000


def _broken(kind: str, condition: Column) -> list[Column]:
    """How many rows there are of which a condition holds, and the connection of the first."""
    first = F.min_by(F.when(condition, F.col("connection")), F.when(condition, F.col("time")))
    return [F.count_if(condition).alias(f"{kind}_count"), first.alias(f"{kind}_first")]


def _is_no_line() -> Column:
    """Whether method, path or query would break the request line."""
    kept = [matches(F.col(name), pattern) for name, pattern in (("method", METHOD), ("path", PATH))]
    return ~(kept[0] & kept[1] & matches(F.coalesce("query", F.lit("")), QUERY))


def _has_no_header() -> Column:
    """Whether there is a header that would break the head. One without a value is such, too."""

    def is_broken(values: Column) -> Column:
        return values.isNull() | F.exists(values, lambda value: value.isNull() | ~matches(value, VALUE))

    names = F.exists(F.map_keys("headers"), lambda name: ~matches(name, NAME))
    return F.coalesce(names | F.exists(F.map_values("headers"), is_broken), F.lit(False))


def matches(text: Column, pattern: str) -> Column:
    """Whether the whole of a text is of a pattern."""
    # Not $, which matches before a line end, too.
    return text.rlike(rf"\A(?:{pattern})\z")
