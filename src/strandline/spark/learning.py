"""The evidence by which noise is told from differences, counted by Spark for each place."""

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.report.noise import Evidence, Place
from strandline.spark.judging import place_of

PLACE = ["endpoint", "kind", "path", "change"]
MOST_PLACES = 5_000
"""The most frequent count; more places than these are no noise."""
MOST_ASKED = 200
"""How many exchanges of one request are looked at, drawn from all of them."""


def evidence(exchanges: DataFrame, baseline: DataFrame | None) -> dict[Place, Evidence]:
    """What is seen of each place, in the exchanges and, where there is one, in a second run."""
    found = _exploded(exchanges)
    counts: dict[Place, dict[str, int]] = {}
    _add(counts, _values(found))
    _add(counts, _asked_twice(exchanges.where("compared"), found))
    if baseline is not None:
        _add(counts, _two_runs(exchanges, baseline))
    return {place: Evidence(**numbers) for place, numbers in counts.items()}


def ruled(exchanges: DataFrame) -> list[Any]:
    """The places that a rule leaves out, and how often they differ."""
    told = exchanges.select("endpoint", F.explode("differences").alias("d")).where("d.ruled")
    counted = told.groupBy("endpoint", "d.kind", "d.path").count()
    return counted.orderBy(F.desc("count"), "endpoint", "path").limit(MOST_PLACES).collect()


def _add(counts: dict[Place, dict[str, int]], frame: DataFrame) -> None:
    names = [name for name in frame.columns if name not in PLACE]
    total: Column = reduce(lambda one, other: one + other, (F.col(name) for name in names))
    for row in frame.orderBy(total.desc(), *PLACE).limit(MOST_PLACES).collect():
        place = place_of(*(row[name] for name in PLACE))
        counts.setdefault(place, {}).update({name: int(row[name]) for name in names})


def _exploded(exchanges: DataFrame) -> DataFrame:
    """A row for each difference that no rule leaves out."""
    told = exchanges.select("id", "endpoint", F.explode("differences").alias("d")).where("not d.ruled")
    return told.select("id", "endpoint", "d.kind", "d.path", "d.change", "d.source_hash", "d.target_hash")


def _values(found: DataFrame) -> DataFrame:
    by_pair = found.groupBy(*PLACE, "source_hash", "target_hash").count()
    by_value = by_pair.groupBy(*PLACE, "source_hash").agg(F.sum("count").alias("count"), F.count("*").alias("pairs"))
    return by_value.groupBy(*PLACE).agg(
        F.sum("count").alias("differ"), F.count("*").alias("values"), F.sum("pairs").alias("pairs")
    )


def _asked_twice(compared: DataFrame, found: DataFrame) -> DataFrame:
    """Exchanges of one request in an order of chance, each with the one half of them further."""
    same = Window.partitionBy("question")
    asked = (
        compared.select("id", "question")
        .withColumn("number", F.row_number().over(same.orderBy(F.xxhash64("id"), "id")))
        .withColumn("count", F.least(F.count("*").over(same), F.lit(MOST_ASKED)))
        .where(f"count > 1 and number <= {MOST_ASKED}")
    )
    half = F.expr("count div 2")
    told = found.join(asked, "id")
    keys = [*PLACE, "question", "number"]
    ones = told.where(F.col("number") + half <= F.col("count")).withColumn("number", F.col("number") + half)
    others = told.where(F.col("number") > half)
    pairs = _paired(ones, others, keys)
    both = F.col("one").isNotNull() & F.col("other").isNotNull()
    stood = F.col("one.source_hash") == F.col("other.source_hash")
    return pairs.groupBy(*PLACE).agg(
        F.count_if(both & ~stood).alias("moved"),
        F.count_if(both & stood).alias("stood"),
        F.count_if(~both).alias("agreed"),
    )


def _two_runs(exchanges: DataFrame, baseline: DataFrame) -> DataFrame:
    """The same requests in two runs."""
    shared = exchanges.where("compared").select("id", "endpoint").join(baseline.where("compared").select("id"), "id")
    ones = _exploded(exchanges).join(shared.select("id"), "id")
    others = _exploded(baseline.drop("endpoint").join(shared, "id"))
    pairs = _paired(ones, others, ["id", *PLACE])
    both = F.col("one").isNotNull() & F.col("other").isNotNull()
    same = F.col("one.target_hash") == F.col("other.target_hash")
    return pairs.groupBy(*PLACE).agg(
        F.count_if(both & ~same).alias("scattered"),
        F.count_if(both & same).alias("odd_source"),
        F.count_if(~both).alias("odd_target"),
    )


def _paired(ones: DataFrame, others: DataFrame, keys: list[str]) -> DataFrame:
    hashes = F.struct("source_hash", "target_hash")
    left, right = ones.select(*keys, hashes.alias("one")), others.select(*keys, hashes.alias("other"))
    return left.join(right, keys, "full_outer")
