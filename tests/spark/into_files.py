"""A stream of the ordered source into files: by a session, and as a program that can be killed."""

import sys

from pyspark.sql import SparkSession

from strandline.spark import register, session
from tests.spark.jvm import QUICK
from tests.support import TIMEOUT


def into_files(spark: SparkSession, address: str, topic: str, out: str, checkpoint: str) -> None:
    """All that is there, in epochs of 3,000 rows."""
    source = spark.readStream.format("kafka_ordered").option("kafka.bootstrap.servers", address)
    rows = source.option("topics", topic).option("maxRowsPerEpoch", "3000").load()
    files = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
    assert files.trigger(availableNow=True).start().awaitTermination(int(3 * TIMEOUT)), "it has not ended"


if __name__ == "__main__":
    own = session("stream", master="local[2]", options=QUICK)
    register(own)
    into_files(own, *sys.argv[1:])
    own.stop()
