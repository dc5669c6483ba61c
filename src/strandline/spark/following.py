"""The report on a results topic as it grows: a streaming query keeps what is compared, and the report is made anew.

Each epoch has a directory of its own, written whole or again, and Spark's checkpoint says which comes next. So a query
that is killed at any moment and started again, with the same `out`, goes on as if nothing had been.
"""

import time
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession

from strandline.errors import OptionError
from strandline.report.summary import Summary
from strandline.spark.comparing import compared
from strandline.spark.refusal import refused_in_one_line
from strandline.spark.report import Plan, Say, TopicResults, keep, source_options, summarise

STREAM = ".stream"
POLL_S = 1


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
    results = plan.results
    if not isinstance(results, TopicResults) or plan.baseline is not None:
        raise OptionError("a report that follows takes a topic of results, and no baseline")
    work = plan.out / STREAM
    made_at = time.monotonic()

    def keep_epoch(batch: DataFrame, epoch: int) -> None:
        nonlocal made_at
        keep(batch, work / "results" / f"epoch={epoch}")
        if time.monotonic() - made_at >= every.total_seconds() and not is_stopped():
            summarise(spark, plan, work, now_us=now_us(), say=say)
            made_at = time.monotonic()

    with refused_in_one_line():
        source = spark.readStream.format("kafka_ordered").options(**source_options(results)).load()
        writer = compared(source, plan.rules).writeStream.foreachBatch(keep_epoch)
        writer = writer.option("checkpointLocation", str(work / "checkpoint"))
        query = (writer.trigger(availableNow=True) if only_what_is_there else writer).start()
        say(f"following {results}; Ctrl-C makes the last report")
        try:
            while query.isActive and not is_stopped():
                query.awaitTermination(POLL_S)
            failure = query.exception()
            if failure is not None:
                raise failure
        finally:
            query.stop()
        return summarise(spark, plan, work, now_us=now_us(), say=say)
