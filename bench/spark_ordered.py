"""`kafka_ordered` on Spark: 2,000,000 rows in order into a sink that does nothing, and through `mapInArrow`.

Beside it, in the same session, the limit: a source that gives batches of the same shape out of memory, without Kafka.

The ceilings, 1.4 s and 3.6 s, were set where the limit took 0.7 s and 3.0 s. Where the limit is slower than that in a
run, because the machine is or because others use it too, the ceilings rise as much as the limit has; they never fall.

`python -m bench.spark_ordered`, with `--quick` for a smoke run.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered import Log, event, fill, progress
from strandline.spark import register, session
from strandline.spark.ordered import SCHEMA
from strandline.spark.slice import ARROW
from strandline.stack import Stack

CORES = 2
CEILINGS_S = {False: 1.4, True: 3.6}
"""Without and with `mapInArrow`, where the limit takes no longer than LIMITS_S."""
LIMITS_S = {False: 0.7, True: 3.0}
BATCH_ROWS = 100_000


@dataclass(frozen=True)
class Amounts:
    """How much is read, and how often."""

    records: int = 2_000_000
    rounds: int = 5
    slices: int = CORES


QUICK = Amounts(records=20_000, rounds=1)


class Synthetic(DataSource):
    """Rows like those of the events, made once a task and given again and again."""

    @classmethod
    def name(cls) -> str:
        return "synthetic"

    def schema(self) -> Any:
        return SCHEMA

    def reader(self, schema: Any) -> "SyntheticReader":  # noqa: ARG002  (Spark's signature)
        return SyntheticReader(int(self.options["rows"]), int(self.options["slices"]))


class SyntheticReader(DataSourceReader):
    def __init__(self, rows: int, slices: int) -> None:
        self._rows = rows
        self._slices = slices

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._slices)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        keys, values = zip(*(event(number) for number in range(1000)), strict=True)
        columns = {
            "key": keys,
            "value": values,
            "topic": ["events"] * 1000,
            "partition": [0] * 1000,
            "offset": range(1000),
            "timestamp": range(1000),
            "headers": [[]] * 1000,
            "late": [False] * 1000,
        }
        table = pa.table({name: pa.array(column, ARROW.field(name).type) for name, column in columns.items()})
        batch = pa.concat_tables([table] * (BATCH_ROWS // 1000)).combine_chunks().to_batches()[0]
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=ARROW)
        left = self._rows // self._slices
        while left:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= min(left, BATCH_ROWS)


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def seconds(frame: DataFrame, *, by_arrow: bool) -> float:
    """How long it takes to read it all."""
    chosen = frame.mapInArrow(same, frame.schema) if by_arrow else frame
    begin = time.perf_counter()
    chosen.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def frames(spark: SparkSession, address: str, rows: int, slices: int) -> dict[str, DataFrame]:
    ours = spark.read.format("kafka_ordered").option("kafka.bootstrap.servers", address).option("topics", "events")
    limit = spark.read.format("synthetic").option("rows", rows).option("slices", slices)
    return {"ours": ours.option("slices", slices).load(), "limit": limit.load()}


def is_in_order(frame: DataFrame) -> bool:
    """Whether the rows, as Spark gives them, never go back in time: each partition of the events rises."""
    times = frame.select("timestamp").toArrow()["timestamp"].cast(pa.int64()).to_numpy()
    return bool((np.diff(times) >= 0).all())


def ceiling(best: dict[tuple[str, bool], float], *, by_arrow: bool) -> float:
    """The seconds that we may take, as the limit of this run has it."""
    return CEILINGS_S[by_arrow] * max(1.0, best["limit", by_arrow] / LIMITS_S[by_arrow])


def ratio(best: dict[tuple[str, bool], float], *, by_arrow: bool) -> float:
    return best["ours", by_arrow] / best["limit", by_arrow]


if __name__ == "__main__":
    chosen, is_quick = parse("bench.spark_ordered", Amounts(), QUICK)
    with Stack(["kafka"]) as stack:
        address = stack.kafka[0].address
        fill(address, Log("events", chosen.records, "lz4", event))
        spark = session("bench", master=f"local[{CORES}]", options={"spark.ui.showConsoleProgress": "false"})
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        spark.dataSource.register(Synthetic)
        best: dict[tuple[str, bool], float] = {}
        for round_ in range(chosen.rounds):
            for name, frame in frames(spark, address, chosen.records, chosen.slices).items():
                for by_arrow in (False, True):
                    took = seconds(frame, by_arrow=by_arrow)
                    best[name, by_arrow] = min(took, best.get((name, by_arrow), took))
                    progress(f"round {round_ + 1}: {name}, {'mapInArrow' if by_arrow else 'noop'}: {took:.2f} s")
        ours = frames(spark, address, chosen.records, chosen.slices)["ours"]
        if ours.count() != chosen.records:
            raise AssertionError("rows are missing")
        ordered = is_in_order(ours)
        spark.stop()
    load = os.getloadavg()[0]
    report(
        f"{chosen.records:,} rows on Spark, {CORES} cores (load {load:.1f}), in order, best of {chosen.rounds}",
        [
            Figure("spark_ordered.in_order", float(ordered), "1 when the rows come in order", floor=1, is_exact=True),
            Figure("spark_ordered.limit_noop_s", best["limit", False], "a source without Kafka, into noop"),
            Figure("spark_ordered.limit_arrow_s", best["limit", True], "the same through mapInArrow"),
            Figure("spark_ordered.noop_vs_limit", ratio(best, by_arrow=False), "times the limit, into noop"),
            Figure("spark_ordered.arrow_vs_limit", ratio(best, by_arrow=True), "times the limit, through mapInArrow"),
            Figure(
                "spark_ordered.noop_s",
                best["ours", False],
                "into noop; ceiling 1.4 s, raised with a limit above 0.7 s",
                ceiling=ceiling(best, by_arrow=False),
            ),
            Figure(
                "spark_ordered.arrow_s",
                best["ours", True],
                "through mapInArrow; ceiling 3.6 s, raised with a limit above 3.0 s",
                ceiling=ceiling(best, by_arrow=True),
            ),
        ],
        is_quick=is_quick,
    )
