"""One Spark session for all tests of the sources."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.spark import register, session
from tests.spark.jvm import QUICK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, our sources registered."""
    options = {**QUICK, "spark.sql.shuffle.partitions": "2"}
    found = session("tests", master="local[2]", options=options)
    found.sparkContext.setLogLevel("ERROR")
    register(found)
    yield found
    found.stop()
