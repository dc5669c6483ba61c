"""The judged exchanges summed up: by endpoint, by difference, along the time of the replay, and in all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.report.latency import STEPS, Durations, Tested, curve
from strandline.report.summary import Curve, Difference, Endpoint, Example, Fidelity, Kind, Moment, Verdict
from strandline.report.timeline import length_us, without_gaps
from strandline.report.verdicts import MISMATCHES

MOST_DIFFERENCES = 300
MOST_EXAMPLES = 400
MOST_CANDIDATES = 50_000
ACCURACY = 10_000
"""Quantiles are off by at most one part in so many, in rank."""

ByEndpoint = Mapping[str, tuple[Durations, Durations]]


def durations(exchanges: DataFrame) -> dict[str, tuple[dict[int, int], dict[int, int]]]:
    """How long source and target took, by endpoint, where both answered with the same status."""
    both = exchanges.where("source_us is not null and target_us is not null and source_status = target_status")
    sides = both.select("endpoint", F.posexplode(F.array("source_us", "target_us")).alias("side", "micros"))
    buckets = sides.withColumn("bucket", F.floor(F.log2(F.col("micros") + 1) * STEPS))
    found: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for row in buckets.groupBy("endpoint", "side", "bucket").count().collect():
        found.setdefault(row.endpoint, ({}, {}))[row.side][row.bucket] = row["count"]
    return found


def curves(by_endpoint: ByEndpoint) -> tuple[Curve, Curve]:
    """Of all endpoints together."""
    sums: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for pair in by_endpoint.values():
        for total, part in zip(sums, pair, strict=True):
            for bucket, count in part.items():
                total[bucket] = total.get(bucket, 0) + count
    return curve(sums[0]), curve(sums[1])


def endpoints(table: DataFrame, by_endpoint: ByEndpoint, tested: Mapping[str, Tested]) -> list[Endpoint]:
    """Every endpoint, those with most differences first."""
    verdicts: dict[str, dict[Verdict, int]] = {}
    for row in table.groupBy("endpoint", "verdict").count().collect():
        verdicts.setdefault(row.endpoint, {})[Verdict(row.verdict)] = row["count"]
    nothing = Tested(slower=None, p_value=None, regressed=False)
    found = []
    for name, counts in verdicts.items():
        source, target = by_endpoint.get(name, ({}, {}))
        test = tested.get(name, nothing)
        found.append(
            Endpoint(
                name=name,
                count=sum(counts.values()),
                verdicts=counts,
                source=curve(source),
                target=curve(target),
                slower=test.slower,
                regressed=test.regressed,
                p_value=test.p_value,
            )
        )
    return sorted(found, key=lambda each: (-_differing(each.verdicts), -each.count, each.name))


def _differing(verdicts: Mapping[Verdict, int]) -> int:
    return sum(count for verdict, count in verdicts.items() if verdict is not Verdict.SAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """The most frequent differences, and how many there are beside them."""

    told: Sequence[Difference]
    left_out: int


def differences(table: DataFrame) -> DataFrame:
    """The table of differences: each place once, with a count and with what one example has there."""
    told = table.select("endpoint", "id", "sent_us", "has_example", F.explode("differences").alias("d"))
    chosen = F.struct((~F.col("has_example")).alias("bare"), "sent_us", "id", "d.source", "d.target")
    grouped = told.groupBy("endpoint", "d.kind", "d.path", "d.change").agg(
        F.count("*").alias("count"), F.min(chosen).alias("chosen")
    )
    return grouped.select(
        "endpoint",
        "kind",
        "path",
        "change",
        "count",
        "chosen.source",
        "chosen.target",
        F.col("chosen.id").alias("example"),
    )


def most_frequent(grouped: DataFrame) -> Differences:
    """The first of the differences by their count."""
    rows = grouped.orderBy(F.desc("count"), "endpoint", "kind", "path", "change").limit(MOST_DIFFERENCES).collect()
    told = [
        Difference(
            endpoint=row.endpoint,
            kind=Kind(row.kind),
            path=row.path,
            count=row["count"],
            source=row.source,
            target=row.target,
            example=row.example,
        )
        for row in rows
    ]
    return Differences(told=told, left_out=grouped.count() - len(told) if len(told) == MOST_DIFFERENCES else 0)


def examples(table: DataFrame, texts: DataFrame, told: Sequence[Difference]) -> dict[str, Example]:
    """The exchanges that the differences name, and beside them one of each verdict of each endpoint."""
    shown = (
        table.where("has_example").select("id", "endpoint", "verdict").orderBy("id").limit(MOST_CANDIDATES).collect()
    )
    verdicts = {row.id: Verdict(row.verdict) for row in shown}
    wanted = {each.example for each in told if each.example in verdicts}
    seen = {(row.endpoint, row.verdict) for row in shown if row.id in wanted}
    for row in shown:
        if (row.endpoint, row.verdict) not in seen and len(wanted) < MOST_EXAMPLES:
            seen.add((row.endpoint, row.verdict))
            wanted.add(row.id)
    rows = texts.where(F.col("id").isin(list(wanted))).select("id", "example").collect()
    found = {}
    for row in rows:
        example = msgspec.json.decode(bytes(row.example), type=Example)
        found[row.id] = msgspec.structs.replace(example, verdict=verdicts[row.id])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The replay as a whole."""

    exchanges: int
    first_us: int | None
    last_us: int | None
    fidelity: Fidelity


def run_of(table: DataFrame) -> Run:
    """When it was, and how true to the captured timing and order."""
    sent = table.where("sent_us is not null")
    late = F.col("lateness_us")
    row: Any = table.agg(
        F.count("*").alias("exchanges"),
        F.min("sent_us").alias("first"),
        F.max("sent_us").alias("last"),
        F.percentile_approx(late, [0.5, 0.99], ACCURACY).alias("late"),
        F.max(late).alias("most"),
        F.regr_slope(late, F.col("sent_us") / 1e6).alias("slope"),
        F.count_distinct(F.when(F.col("sent_us").isNotNull(), F.col("connection"))).alias("connections"),
        F.count("sent_us").alias("sent"),
    ).first()
    in_order = Window.partitionBy("connection", "partition").orderBy("offset", "ordinal")
    before = F.lag("last_sent_us").over(in_order)
    violations: Any = sent.select((before > F.col("last_sent_us")).alias("wrong")).agg(F.count_if("wrong")).first()
    quantiles = row.late or [None, None]
    kept = Fidelity(
        late_p50_us=quantiles[0],
        late_p99_us=quantiles[1],
        late_max_us=row.most,
        drift_us_per_s=row.slope,
        order_violations=violations[0],
        connections=row.connections,
        reuse=row.sent / row.connections if row.connections else None,
    )
    return Run(exchanges=row.exchanges, first_us=row.first, last_us=row.last, fidelity=kept)


def timeline(table: DataFrame, first_us: int | None, last_us: int | None) -> list[Moment]:
    """The replay in stretches."""
    if first_us is None or last_us is None:
        return []
    length = length_us(first_us, last_us)
    number = F.floor((F.col("sent_us") - first_us) / length)
    sent = table.where("sent_us is not null").groupBy(number.alias("number"))
    rows = sent.agg(
        F.count("*").alias("sent"),
        F.count_if(F.col("verdict").isin([verdict.value for verdict in MISMATCHES])).alias("mismatches"),
        F.percentile_approx("lateness_us", [0.5, 0.99], ACCURACY).alias("late"),
    ).collect()
    moments = {
        row.number: Moment(
            start_us=first_us + row.number * length,
            sent=row.sent,
            mismatches=row.mismatches,
            late_p50_us=(row.late or [None, None])[0],
            late_p99_us=(row.late or [None, None])[1],
        )
        for row in rows
    }
    return without_gaps(moments, first_us=first_us, length=length)
