"""A Spark session that starts anywhere: with the Java that is there, our own Python, and on loopback only.

And our data sources in any session.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from strandline.spark.ordered import KafkaOrdered
from strandline.spark.replay_sink import HttpReplay
from strandline.spark.traffic import HttpTraffic
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
    # Spark takes both from the environment alone, when it starts the JVM.
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {"spark.sql.session.timeZone": "UTC", **(LOOPBACK_ONLY if master.startswith("local") else {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in {**defaults, **(options or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def register(spark: SparkSession) -> None:
    """Make the data sources of Strandline known to a session: `spark.read.format("kafka_ordered")`."""
    for source in (KafkaOrdered, HttpTraffic, HttpReplay):
        spark.dataSource.register(source)
