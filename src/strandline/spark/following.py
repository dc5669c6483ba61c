"""The report on a results topic as it grows: a streaming query keeps what is compared, and the report is made anew.

Each epoch has a directory of its own, written whole or again, and Spark's checkpoint says which comes next. So a query
that is killed at any moment and started again, with the same `out`, goes on as if nothing had been. A file beside them
says what they belong to: with other results or other rules nothing goes on.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Lock

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strandline.errors import NoResults, OptionError
from strandline.report.rules import Rules
from strandline.report.summary import Summary
from strandline.spark.comparing import compared
from strandline.spark.refusal import refused_in_one_line
from strandline.spark.report import Plan, Say, keep, summarise
from strandline.spark.results import TopicResults

STREAM = ".stream"
RESULTS = "results"
BELONGS = "belongs-to.json"
POLL_S = 1
EPOCHS_A_REPORT = 3


class Belonging(msgspec.Struct, frozen=True, kw_only=True):
    """What the kept comparisons are of."""

    topic: str
    kafka: str
    start: str
    rules: msgspec.Raw
    """Those that the comparison asks for."""


def checked(plan: Plan) -> TopicResults:
    """The results to follow; refuses what cannot be followed, and what is not what was begun in its `out`."""
    results = plan.results
    if not isinstance(results, TopicResults) or plan.baseline is not None:
        raise OptionError("a report that follows takes a topic of results, and no baseline")
    if results.end is not None:
        raise OptionError("a report that follows goes on until it is stopped; leave out --until")
    work = plan.out / STREAM
    if (work / "checkpoint").exists():
        other = _others(_read(work / BELONGS), _belonging(results, plan.rules))
        if other:
            raise OptionError(f"{work} was begun with other {other}; name another --out, or remove it to begin anew")
    return results


def follow(
    spark: SparkSession,
    plan: Plan,
    *,
    now_us: Callable[[], int],
    is_stopped: Callable[[], bool] = lambda: False,
    every: timedelta = timedelta(seconds=30),
    only_what_is_there: bool = False,
    say: Say = lambda _: None,
) -> Summary:
    """Compare results as they come and make the report anew, until it is stopped; the last report."""
    results = checked(plan)
    work = plan.out / STREAM
    kept = _Kept(work / RESULTS)
    _write(_belonging(results, plan.rules), work / BELONGS)

    def make() -> Summary:
        kept.is_new = False
        return summarise(spark, plan, work, now_us=now_us(), say=say)

    summary: Summary | None = None
    made_at = time.monotonic()
    with refused_in_one_line():
        query = _started(spark, plan, results, kept, None if only_what_is_there else every / EPOCHS_A_REPORT)
        say(f"following {results}; Ctrl-C makes the last report")
        try:
            while query.isActive and not is_stopped():
                query.awaitTermination(POLL_S)
                if kept.is_new and time.monotonic() - made_at >= every.total_seconds():
                    with kept.at_rest(POLL_S) as is_at_rest:
                        if is_at_rest:
                            with suppress(NoResults):
                                summary = make()
                            made_at = time.monotonic()
            failure = query.exception()
            if failure is not None:
                raise failure
        finally:
            query.stop()
        with kept.at_rest():
            return make() if kept.is_new or summary is None else summary


class _Kept:
    """What has been compared so far, a directory for each epoch."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._writing = Lock()
        self.is_new = any(directory.iterdir())
        """Whether there is something that no report has shown."""

    def put(self, batch: DataFrame, epoch: int) -> None:
        """The rows of an epoch, in the place of those that an attempt before has left."""
        with self._writing:
            keep(batch, self._directory / f"epoch={epoch}")
            self.is_new = True

    @contextmanager
    def at_rest(self, within: float = -1) -> Iterator[bool]:
        """Whether no epoch is being written, which is so until this is left; told after so many seconds at most."""
        is_at_rest = self._writing.acquire(timeout=within)
        try:
            yield is_at_rest
        finally:
            if is_at_rest:
                self._writing.release()


def _started(
    spark: SparkSession, plan: Plan, results: TopicResults, kept: _Kept, every: timedelta | None
) -> StreamingQuery:
    """The query that compares: an epoch every so often, or all that is there."""
    source = spark.readStream.format("kafka_ordered").options(**results.options()).load()
    writer = compared(source, plan.rules).writeStream.foreachBatch(kept.put)
    writer = writer.option("checkpointLocation", str(plan.out / STREAM / "checkpoint"))
    if every is None:
        return writer.trigger(availableNow=True).start()
    # Each epoch is a directory for every later report to read: none is made that no report would show.
    return writer.trigger(processingTime=f"{every // timedelta(milliseconds=1)} milliseconds").start()


def _belonging(results: TopicResults, rules: Rules) -> Belonging:
    # These two are asked when a report is made, and may be others each time.
    compared_by = replace(rules, latency=Rules().latency, learns=True)
    return Belonging(
        topic=results.topic,
        kafka=",".join(sorted(part.strip() for part in results.kafka["bootstrap.servers"].split(","))),
        start=results.start,
        rules=msgspec.Raw(msgspec.json.encode(compared_by, order="sorted")),
    )


def _others(found: Belonging | None, wanted: Belonging) -> str:
    """The options that are not what they were; nothing where all are."""
    options = {"topic": "--results", "kafka": "--kafka", "start": "--from", "rules": "--rules"}
    if found is None:
        return "options than can be told"
    return ", ".join(text for name, text in options.items() if getattr(found, name) != getattr(wanted, name))


def _read(file: Path) -> Belonging | None:
    """What a file says; None if it is not there or says nothing that we know."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Belonging)
    except (OSError, msgspec.DecodeError):
        return None


def _write(belonging: Belonging, file: Path) -> None:
    # A file that is there is whole.
    aside = file.with_suffix(".new")
    aside.write_bytes(msgspec.json.encode(belonging))
    aside.replace(file)
