"""The evidence by which noise is told from differences, counted by Spark for each place."""

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (as everybody calls them)

from strandline.report.noise import Evidence, Place
from strandline.spark.judging import place_of

PLACE = ["endpoint", "kind", "path", "change"]
MOST_PLACES = 5_000
"""The most frequent count; what comes behind them is taken for no noise."""


def evidence(exchanges: DataFrame, baseline: DataFrame | None) -> dict[Place, Evidence]:
    """What is seen of each place, in the exchanges and, where there is one, in a second run."""
    found = _exploded(exchanges)
    seen = _values(found).unionByName(_asked_twice(exchanges, found), allowMissingColumns=True)
    if baseline is not None:
        seen = seen.unionByName(_two_runs(exchanges, baseline), allowMissingColumns=True)
    names = [name for name in seen.columns if name not in PLACE]
    summed = seen.groupBy(*PLACE).agg(*(F.sum(name).alias(name) for name in names))
    rows = summed.orderBy(F.desc("differ"), *PLACE).limit(MOST_PLACES).collect()
    return {
        place_of(*(row[name] for name in PLACE)): Evidence(
            **{name: row[name] for name in names if row[name] is not None}
        )
        for row in rows
    }


def ruled(exchanges: DataFrame) -> list[Any]:
    """The places that a rule leaves out, and how often they differ."""
    told = exchanges.select("endpoint", F.explode("differences").alias("d")).where("d.ruled")
    counted = told.groupBy("endpoint", "d.kind", "d.path").count()
    return counted.orderBy(F.desc("count"), "endpoint", "path").limit(MOST_PLACES).collect()


def _exploded(exchanges: DataFrame) -> DataFrame:
    """A row for each difference that no rule leaves out."""
    told = exchanges.select("id", "endpoint", "question", "compared", F.explode("differences").alias("d"))
    return told.where("not d.ruled").select("id", "endpoint", "question", "compared", "d.*")


def _values(found: DataFrame) -> DataFrame:
    by_pair = found.groupBy(*PLACE, "source_hash", "target_hash").count()
    by_value = by_pair.groupBy(*PLACE, "source_hash").agg(F.sum("count").alias("count"), F.count("*").alias("pairs"))
    return by_value.groupBy(*PLACE).agg(
        F.sum("count").alias("differ"), F.count("*").alias("values"), F.sum("pairs").alias("pairs")
    )


def _asked_twice(exchanges: DataFrame, found: DataFrame) -> DataFrame:
    """What is to be expected of the exchanges of each request, put in pairs by chance.

    Of n exchanges there are n(n-1)/2 pairs, and n/2 of them can be made at a time; so each counts 1/(n-1).
    """
    asked = exchanges.where("compared").groupBy("question").agg(F.count("*").alias("n")).where("n > 1")
    by_value = found.where("compared").groupBy("question", *PLACE, "source_hash").count()
    by_question = by_value.groupBy("question", *PLACE).agg(
        F.sum("count").alias("d"), F.sum(F.col("count") * (F.col("count") - 1) / 2).alias("same")
    )
    pairs = by_question.join(asked, "question").groupBy(*PLACE)
    return pairs.agg(
        F.sum(F.expr("(d * (d - 1) / 2 - same) / (n - 1)")).alias("moved"),
        F.sum(F.expr("same / (n - 1)")).alias("stood"),
        F.sum(F.expr("d * (n - d) / (n - 1)")).alias("agreed"),
    )


def _two_runs(exchanges: DataFrame, baseline: DataFrame) -> DataFrame:
    """The requests that were compared in both runs; in the second they have no endpoint yet."""
    shared = exchanges.where("compared").join(baseline.where("compared").select("id"), "id")
    both = shared.select("id", "endpoint")
    runs = _exploded(shared).unionByName(_exploded(baseline.drop("endpoint").join(both, "id")))
    by_request = runs.groupBy("id", *PLACE).agg(
        F.count("*").alias("runs"), F.min("target_hash").alias("one"), F.max("target_hash").alias("other")
    )
    return by_request.groupBy(*PLACE).agg(
        F.count_if(F.expr("runs = 2 and one != other")).alias("scattered"),
        F.count_if(F.expr("runs = 2 and one = other")).alias("odd_source"),
        F.count_if(F.expr("runs = 1")).alias("odd_target"),
    )
