"""The report on a replay as a Spark job: results compared, noise learned, exchanges judged and summed up.

Results are read once. What is kept of each is one small row, in Parquet beside the report; all that follows works on
those rows, and the driver holds only what the summary does.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.counts import counted
from strandline.errors import NoResults
from strandline.report.directory import PAGE, SUMMARY, TABLES, WORK, put_in_place
from strandline.report.endpoints import Endpoints
from strandline.report.fidelity import fidelity
from strandline.report.gates import Threshold
from strandline.report.latency import regressions
from strandline.report.noise import BY_RULE, Evidence, Place, learn
from strandline.report.page import render
from strandline.report.rules import Rules
from strandline.report.summary import Kind, Noise, Summary, Verdict
from strandline.report.tables import write_small_tables
from strandline.spark import learning, summing
from strandline.spark.comparing import compared, schema
from strandline.spark.gathering import gathered
from strandline.spark.judging import judged
from strandline.spark.refusal import refused_in_one_line
from strandline.spark.results import Results, literal

MOST_SHAPES = 100_000
MOST_NOISE = 300

Say = Callable[[str], None]


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
            keep(compared(plan.results.read(spark), plan.rules), work / "results")
            if plan.baseline is not None:
                say(f"comparing the results of {plan.baseline}")
                keep(compared(plan.baseline.read(spark), plan.rules), work / "baseline")
        return summarise(spark, plan, work, now_us=now_us, say=say)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def summarise(spark: SparkSession, plan: Plan, work: Path, *, now_us: int, say: Say) -> Summary:
    """Make the report of the results that have been compared."""
    kept = spark.read.schema(schema()).parquet(literal(work / "results"))
    shapes = _shapes(kept)
    if not shapes.counts:
        but = (
            f", only {counted(shapes.malformed, 'record that is none', 'records that are none')}"
            if shapes.malformed
            else ""
        )
        raise NoResults(f"{plan.results} holds no results{but}")
    say(f"learning what is noise in {counted(shapes.results, 'result')}")
    names = Endpoints(shapes.counts).names(shapes.counts)
    exchanges = _put_aside(spark, gathered(kept, names), work / "exchanges")
    baseline = None
    if plan.baseline is not None:
        second = spark.read.schema(schema()).parquet(literal(work / "baseline"))
        baseline = _put_aside(spark, gathered(second, {}), work / "second")
    seen = learning.evidence(exchanges, baseline) if plan.rules.learns else {}
    noise = learn(seen)
    durations = summing.durations(exchanges)
    tested = regressions(durations, plan.rules.latency)
    regressed = [name for name, test in tested.items() if test.regressed]
    say("judging the exchanges")
    made = work / "made"
    shutil.rmtree(made, ignore_errors=True)
    table = _put_aside(
        spark, judged(exchanges, list(noise), regressed, plan.rules.latency), made / TABLES / "exchanges"
    )
    say("summing up")
    sums = summing.counted(table, shapes.first_us or 0)
    timed = summing.timed(table, shapes.first_us, shapes.last_us)
    source, target = summing.curves(durations)
    endpoints = summing.endpoints(sums, durations, tested)
    rows = summing.differences(table)
    told = [summing.difference_of(row) for row in rows[: summing.MOST_DIFFERENCES]]
    exchanges_in_all = sum(endpoint.count for endpoint in endpoints)
    summary = Summary(
        title=plan.title,
        origin=str(plan.results),
        made_us=now_us,
        first_us=shapes.first_us,
        last_us=shapes.last_us,
        exchanges=exchanges_in_all,
        verdicts=_total(sums.verdicts.values()),
        gates=[],
        fidelity=fidelity(sums.sums, timed.lateness),
        timeline=timed.timeline,
        source=source,
        target=target,
        endpoints=endpoints,
        differences=told,
        left_out=len(rows) - len(told),
        noise=_noise(noise, seen, learning.ruled(exchanges) if plan.rules.has_rules else []),
        examples=summing.examples(table, kept.where("example is not null"), told),
        malformed=shapes.malformed,
        repeats=shapes.results - exchanges_in_all,
        ignored_headers=sorted(plan.rules.default_headers),
    )
    summary = msgspec.structs.replace(summary, gates=[gate.check(summary) for gate in plan.gates])
    _write(summary, rows, made)
    put_in_place(made, plan.out)
    return summary


def _write(summary: Summary, differences: Iterable[Any], made: Path) -> None:
    write_small_tables(summary, [row.asDict() for row in differences], made / TABLES)
    (made / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
    (made / PAGE).write_text(render(summary), encoding="utf-8")


def keep(frame: DataFrame, path: Path) -> None:
    """Write rows as Parquet, in the place of those that are there."""
    frame.write.mode("overwrite").parquet(str(path))


def _put_aside(spark: SparkSession, frame: DataFrame, path: Path) -> DataFrame:
    """The rows, computed once and kept for all that is asked of them."""
    keep(frame, path)
    return spark.read.parquet(literal(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """How many results there are of each shape of a request, and when they were sent."""

    counts: Mapping[str, int]
    results: int
    malformed: int
    first_us: int | None
    last_us: int | None


def _shapes(kept: DataFrame) -> _Shapes:
    sums = (F.count("*").alias("count"), F.min("sent_us").alias("first"), F.max("sent_us").alias("last"))
    grouped = kept.groupBy("shape").agg(*sums)
    rows: list[Any] = grouped.orderBy(F.desc("count"), "shape").limit(MOST_SHAPES).collect()
    counts = {row.shape: row["count"] for row in rows if row.shape is not None}
    if len(rows) == MOST_SHAPES:
        rows = kept.groupBy((F.col("problem").isNull()).alias("is_result")).agg(*sums).collect()
    else:
        rows = [row.asDict() | {"is_result": row.shape is not None} for row in rows]
    return _Shapes(
        counts=counts,
        results=sum(row["count"] for row in rows if row["is_result"]),
        malformed=sum(row["count"] for row in rows if not row["is_result"]),
        first_us=min((row["first"] for row in rows if row["first"] is not None), default=None),
        last_us=max((row["last"] for row in rows if row["last"] is not None), default=None),
    )


def _total(verdicts: Iterable[Mapping[Verdict, int]]) -> dict[Verdict, int]:
    total: Counter[Verdict] = Counter()
    for counts in verdicts:
        total.update(counts)
    return {verdict: total[verdict] for verdict in Verdict if total[verdict]}


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
