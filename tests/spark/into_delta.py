"""Changes of Postgres in a table of Delta, as a program: a session has the jars that it was begun with."""

import sys

from strandline.spark import register, session
from tests.spark.jvm import QUICK
from tests.support import wait_for

DELTA = {
    "spark.jars.packages": "io.delta:delta-spark_2.13:4.1.0",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def into_delta(dsn: str, slot: str, publication: str, directory: str, count: str) -> None:
    """Run until so many rows are delivered, and write out their events as the table has them."""
    spark = session("delta", master="local[2]", options={**QUICK, **DELTA})
    register(spark)
    options = {"dsn": dsn, "slot": slot, "publications": publication}
    rows = spark.readStream.format("postgres_wal").options(**options).load()
    query = (
        rows.writeStream.format("delta").option("checkpointLocation", f"{directory}/state").start(f"{directory}/table")
    )
    wait_for(
        lambda: sum(each["numInputRows"] for each in query.recentProgress) >= int(count) or query.exception(),
        "all is delivered",
    )
    query.stop()
    for row in spark.read.format("delta").load(f"{directory}/table").orderBy("lsn", "ordinal").collect():
        sys.stdout.write(f"{bytes(row.event).decode()}\n")
    spark.stop()


if __name__ == "__main__":
    into_delta(*sys.argv[1:])
