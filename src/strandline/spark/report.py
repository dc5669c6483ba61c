"""The report on a replay as a Spark job: results compared, noise learned, exchanges judged and summed up.

Results are read once. What is kept of each is one small row, in Parquet beside the report; all that follows works on
those rows, and the driver holds only what the summary does.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.errors import OptionError, StrandlineError
from strandline.report.endpoints import OTHERS, Endpoints
from strandline.report.gates import Threshold
from strandline.report.latency import regressions
from strandline.report.noise import BY_RULE, Evidence, Place, learn
from strandline.report.rules import Rules
from strandline.report.summary import Kind, Noise, Summary, Verdict
from strandline.report.tables import write_small_tables
from strandline.spark import learning, summing
from strandline.spark.comparing import compared
from strandline.spark.judging import judged

WORK = ".work"
MOST_SHAPES = 100_000
MOST_NOISE = 300
OURS = re.compile(r"strandline\.errors\.\w+: (.+)")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResults:
    """Results in a topic."""

    topic: str
    kafka: Mapping[str, str] = field(repr=False)
    start: str = "earliest"
    end: str | None = None

    def __str__(self) -> str:
        return f"topic {self.topic}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResults:
    """Results in a file of JSON lines, or in all `.jsonl` files of a directory."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Results = TopicResults | FileResults


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to report on, and how."""

    results: Results
    out: Path
    baseline: Results | None = None
    rules: Rules = field(default_factory=Rules)
    gates: tuple[Threshold, ...] = ()
    title: str = "Replay report"


def report(spark: SparkSession, plan: Plan, *, now_us: int, say: Say = lambda _: None) -> Summary:
    """Compare all results there are; write the tables and the report to `plan.out`."""
    work = plan.out / WORK
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        with refused_in_one_line():
            say(f"comparing the results of {plan.results}")
            keep(compared(_read(spark, plan.results), plan.rules), work / "results")
            if plan.baseline is not None:
                say(f"comparing the results of {plan.baseline}")
                keep(compared(_read(spark, plan.baseline), plan.rules), work / "baseline")
        return summarise(spark, plan, work, now_us=now_us, say=say)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def summarise(spark: SparkSession, plan: Plan, work: Path, *, now_us: int, say: Say) -> Summary:
    """Make the report of the results that have been compared."""
    kept = spark.read.parquet(str(work / "results"))
    records, malformed = kept.count(), kept.where("problem is not null").count()
    if records == malformed:
        told = f", only {malformed:,} records that are none" if malformed else ""
        raise StrandlineError(f"{plan.results} holds no results{told}")
    say(f"learning what is noise in {records:,} results")
    keep(_unique(_named(spark, kept.where("problem is null"))), work / "exchanges")
    exchanges = spark.read.parquet(str(work / "exchanges"))
    baseline = None
    if plan.baseline is not None:
        second = spark.read.parquet(str(work / "baseline"))
        baseline = _unique(second.where("problem is null").withColumn("endpoint", F.lit("")))
    seen = learning.evidence(exchanges, baseline) if plan.rules.learns else {}
    noise = learn(seen)
    durations = summing.durations(exchanges)
    tested = regressions(durations, plan.rules.latency)
    regressed = [name for name, test in tested.items() if test.regressed]
    say("judging the exchanges")
    tables = plan.out / "tables"
    keep(judged(exchanges, list(noise), regressed, plan.rules.latency), tables / "exchanges")
    table = spark.read.parquet(str(tables / "exchanges"))
    keep(summing.differences(table), tables / "differences", files=1)
    differences = summing.most_frequent(spark.read.parquet(str(tables / "differences")))
    say("summing up")
    run = summing.run_of(table)
    source, target = summing.curves(durations)
    found = summing.endpoints(table, durations, tested)
    verdicts: dict[Verdict, int] = {}
    for endpoint in found:
        for verdict, count in endpoint.verdicts.items():
            verdicts[verdict] = verdicts.get(verdict, 0) + count
    summary = Summary(
        title=plan.title,
        origin=str(plan.results),
        made_us=now_us,
        first_us=run.first_us,
        last_us=run.last_us,
        exchanges=run.exchanges,
        verdicts=verdicts,
        gates=[],
        fidelity=run.fidelity,
        timeline=summing.timeline(table, run.first_us, run.last_us),
        source=source,
        target=target,
        endpoints=found,
        differences=differences.told,
        left_out=differences.left_out,
        noise=_noise(noise, seen, learning.ruled(exchanges) if plan.rules.has_rules else []),
        examples=summing.examples(table, kept.where("example is not null"), differences.told),
        malformed=malformed,
        repeats=records - malformed - run.exchanges,
    )
    summary = msgspec.structs.replace(summary, gates=[gate.check(summary) for gate in plan.gates])
    write_small_tables(summary, tables)
    write_report(summary, plan.out)
    return summary


def write_report(summary: Summary, out: Path) -> None:
    """The summary as JSON, and the page. The one place where both are made."""
    (out / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
    # The page belongs here: (out / "report.html").write_text(page.render(summary))


def _read(spark: SparkSession, results: Results) -> DataFrame:
    """The records of a batch, in a column `value`."""
    if isinstance(results, TopicResults):
        slices = str(spark.sparkContext.defaultParallelism)
        return spark.read.format("kafka_ordered").options(**source_options(results), slices=slices).load()
    files = [results.path] if results.path.is_file() else sorted(results.path.glob("*.jsonl"))
    if not files:
        raise OptionError(f"{results.path} holds no file *.jsonl")
    lines = spark.read.text([str(file.absolute()) for file in files])
    return lines.where("value != ''").select(F.col("value").cast("binary").alias("value"))


def source_options(results: TopicResults) -> dict[str, str]:
    """The options of `kafka_ordered` for a topic of results."""
    options = {f"kafka.{name}": value for name, value in results.kafka.items()}
    options |= {"topics": results.topic, "start": results.start}
    return options if results.end is None else options | {"end": results.end}


@contextmanager
def refused_in_one_line() -> Iterator[None]:
    """An error of ours that Spark hands on from another process is told as our own, without all that is round it."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        ours = OURS.findall(str(error))
        if not ours:
            raise
        raise StrandlineError(ours[-1]) from error


def keep(frame: DataFrame, path: Path, *, files: int | None = None) -> None:
    """Write rows as Parquet, in the place of those that are there."""
    (frame if files is None else frame.coalesce(files)).write.mode("overwrite").parquet(str(path))


def _named(spark: SparkSession, kept: DataFrame) -> DataFrame:
    """The same with the name of its endpoint for each shape of a path."""
    rows = kept.groupBy("shape").count().orderBy(F.desc("count"), "shape").limit(MOST_SHAPES).collect()
    names = Endpoints({row.shape: row["count"] for row in rows})
    known = {row.shape: names.name(row.shape) for row in rows}
    table = pa.table({"shape": pa.array(known, pa.string()), "endpoint": pa.array(known.values(), pa.string())})
    joined = kept.join(F.broadcast(spark.createDataFrame(table)), "shape", "left")
    return joined.withColumn("endpoint", F.coalesce("endpoint", F.lit(OTHERS)))


def _unique(kept: DataFrame) -> DataFrame:
    """One row for each request.

    A request that was sent again has the first answer that came, for a repeat may find what the first one has made.
    But its place in the order is that of the last sending, behind which the rest was sent again too.
    """
    same = Window.partitionBy("id")
    ordered = same.orderBy(F.desc("answered"), F.col("sent_us").asc_nulls_last(), F.desc(F.col("example").isNotNull()))
    return (
        kept.withColumn("copy", F.row_number().over(ordered))
        .withColumn("last_sent_us", F.max("sent_us").over(same))
        .withColumn("has_example", F.max(F.col("example").isNotNull()).over(same))
        .where("copy = 1")
        .drop("copy", "example", "shape", "problem")
    )


def _noise(noise: Mapping[Place, str], seen: Mapping[Place, Evidence], by_rule: list[Any]) -> list[Noise]:
    counts: dict[tuple[str, Kind, str, str], int] = {}
    for place, reason in noise.items():
        key = (place.endpoint, place.kind, place.path, reason)
        counts[key] = counts.get(key, 0) + seen[place].differ
    for row in by_rule:
        counts[row.endpoint, Kind(row.kind), row.path, BY_RULE] = row["count"]
    found = [
        Noise(endpoint=endpoint, kind=kind, path=path, count=count, reason=reason)
        for (endpoint, kind, path, reason), count in counts.items()
    ]
    return sorted(found, key=lambda each: (-each.count, each.endpoint, each.path))[:MOST_NOISE]
