"""The judged exchanges summed up by Spark: by endpoint, by difference, along the time of the replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.report.fidelity import Sums
from strandline.report.latency import STEPS, Durations, Tested, curve, quantile
from strandline.report.summary import Curve, Difference, Endpoint, Example, Kind, Moment, Verdict
from strandline.report.timeline import BULK, drawn, length_us, may_stray, without_gaps
from strandline.report.verdicts import MISMATCHES

MOST_PLACES = 10_000
MOST_DIFFERENCES = 300
MOST_EXAMPLES = 400
MOST_CANDIDATES = 50_000

ByEndpoint = Mapping[str, tuple[Durations, Durations]]


def _bucket(micros: str) -> Column:
    """As `strandline.report.latency.bucket` has it."""
    return F.floor(F.log2(F.greatest(F.col(micros), F.lit(0)) + 1) * STEPS)


def durations(exchanges: DataFrame) -> dict[str, tuple[dict[int, int], dict[int, int]]]:
    """How long source and target took, by endpoint, where both answered with the same status."""
    both = exchanges.where("source_us is not null and target_us is not null and source_status = target_status")
    sides = both.select("endpoint", F.posexplode(F.array("source_us", "target_us")).alias("side", "micros"))
    found: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for row in sides.groupBy("endpoint", "side", _bucket("micros").alias("bucket")).count().collect():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The verdicts of each endpoint, and the sums of the whole replay."""

    verdicts: Mapping[str, Mapping[Verdict, int]]
    sums: Sums


def counted(table: DataFrame, first_us: int) -> Counted:
    """Count the verdicts, and sum up what the fidelity is made of."""
    x, y = (F.col("sent_us") - first_us) / 1e6, F.col("lateness_us").cast("double")
    grouped = table.groupBy("endpoint", "verdict").agg(
        F.count("*").alias("count"),
        F.count("sent_us").alias("sent"),
        F.sum(x).alias("x"),
        F.sum(y).alias("y"),
        F.sum(x * y).alias("xy"),
        F.sum(x * x).alias("xx"),
        F.max("lateness_us").alias("most"),
        F.count_if("out_of_order").alias("out_of_order"),
        F.count_if("opens").alias("opens"),
    )
    verdicts: dict[str, dict[Verdict, int]] = {}
    sums = Sums()
    for row in grouped.orderBy("endpoint", "verdict").collect():
        verdicts.setdefault(row.endpoint, {})[Verdict(row.verdict)] = row["count"]
        sums.add(
            Sums(
                sent=row.sent,
                x=row.x or 0.0,
                y=row.y or 0.0,
                xy=row.xy or 0.0,
                xx=row.xx or 0.0,
                most_late_us=row.most,
                out_of_order=row.out_of_order,
                connections=row.opens,
            )
        )
    return Counted(verdicts=verdicts, sums=sums)


def endpoints(found: Counted, by_endpoint: ByEndpoint, tested: Mapping[str, Tested]) -> list[Endpoint]:
    """Every endpoint, those with most differences first."""
    nothing = Tested(slower=None, p_value=None, regressed=False)
    made = []
    for name, counts in found.verdicts.items():
        source, target = by_endpoint.get(name, ({}, {}))
        test = tested.get(name, nothing)
        made.append(
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
    return sorted(made, key=lambda each: (each.verdicts.get(Verdict.SAME, 0) - each.count, -each.count, each.name))


def differences(table: DataFrame) -> list[Any]:
    """The rows of the table of differences, the most frequent first: a place, its count, and what one example has."""
    told = table.select("endpoint", "id", "sent_us", "has_example", F.explode("differences").alias("d"))
    chosen = F.struct((~F.col("has_example")).alias("bare"), "sent_us", "id", "d.source", "d.target")
    grouped = told.groupBy("endpoint", "d.kind", "d.path", "d.change").agg(
        F.count("*").alias("count"), F.min(chosen).alias("chosen")
    )
    told = grouped.select("endpoint", "kind", "path", "change", "count", "chosen.source", "chosen.target", "chosen.id")
    return told.orderBy(F.desc("count"), "endpoint", "kind", "path", "change").limit(MOST_PLACES).collect()


def difference_of(row: Any) -> Difference:
    """A row of the table of differences as the summary has it."""
    return Difference(
        endpoint=row.endpoint,
        kind=Kind(row.kind),
        path=row.path,
        count=row["count"],
        source=row.source,
        target=row.target,
        example=row.id,
    )


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
class Timed:
    """The replay in stretches, and how late its requests were."""

    timeline: Sequence[Moment]
    lateness: Durations


def timed(table: DataFrame, first_us: int | None, last_us: int | None) -> Timed:
    """Count along the time of the replay."""
    if first_us is None or last_us is None:
        return Timed(timeline=[], lateness={})
    if may_stray(first_us, last_us):
        found = table.select(F.percentile_approx("sent_us", list(BULK)).alias("bulk")).first()
        if found is not None and found.bulk is not None:
            first_us, last_us = drawn(first_us, last_us, low_us=found.bulk[0], high_us=found.bulk[1])
    length = length_us(first_us, last_us)
    # What lies beyond counts with the stretch that is nearest.
    sent = F.greatest(F.least(F.col("sent_us"), F.lit(last_us)), F.lit(first_us))
    number = F.floor((sent - first_us) / length).alias("number")
    is_mismatch = F.col("verdict").isin([verdict.value for verdict in MISMATCHES])
    grouped = table.where("sent_us is not null").groupBy(number, _bucket("lateness_us").alias("bucket"))
    late: dict[int, dict[int, int]] = {}
    mismatches: dict[int, int] = {}
    total: dict[int, int] = {}
    for row in grouped.agg(F.count("*").alias("count"), F.count_if(is_mismatch).alias("mismatches")).collect():
        late.setdefault(row.number, {})[row.bucket] = row["count"]
        mismatches[row.number] = mismatches.get(row.number, 0) + row.mismatches
        total[row.bucket] = total.get(row.bucket, 0) + row["count"]
    moments = {
        number_: Moment(
            start_us=first_us + number_ * length,
            sent=sum(counts.values()),
            mismatches=mismatches[number_],
            late_p50_us=quantile(counts, 0.5),
            late_p99_us=quantile(counts, 0.99),
        )
        for number_, counts in late.items()
    }
    return Timed(timeline=without_gaps(moments, first_us=first_us, length=length), lateness=total)
