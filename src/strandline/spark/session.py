"""A Spark session that starts anywhere: with the Java that is there, our own Python, and on loopback only.

And our data sources in any session.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from strandline.stack.java import find_java

LOOPBACK_ONLY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def session(app_name: str, *, master: str = "local[*]", options: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process; made if there is none.

    With a local master it listens on loopback and has no web page, unless `options` say otherwise.
    """
    prepare_environment()
    defaults = {"spark.sql.session.timeZone": "UTC", **(LOOPBACK_ONLY if is_local(master) else {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in {**defaults, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def opened(app_name: str, *, master: str, options: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session that knows our data sources, for as long as it is needed."""
    spark = session(app_name, master=master, options=options)
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


def prepare_environment() -> None:
    """Name the Java and the Python to use, which Spark takes from the environment alone when it starts the JVM."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def is_local(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")


def register(spark: SparkSession) -> None:
    """Make the data sources of Strandline known to a session: `spark.read.format("kafka_ordered")`."""
    # Not before it is asked for: they load all that decodes records, and members of a fleet do without.
    from strandline.spark.ordered import KafkaOrdered  # noqa: PLC0415
    from strandline.spark.replay_sink import HttpReplay  # noqa: PLC0415
    from strandline.spark.traffic import HttpTraffic  # noqa: PLC0415

    for source in (KafkaOrdered, HttpTraffic, HttpReplay):
        spark.dataSource.register(source)
