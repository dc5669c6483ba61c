"""One Spark session for all tests of the sources."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.spark import register, session
from tests.spark.cluster import Cluster, standalone
from tests.spark.jvm import QUICK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores, our sources registered, and credentials for the stack's Kinesis, which workers have from here."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    options = {**QUICK, "spark.sql.shuffle.partitions": "2"}
    found = session("tests", master="local[2]", options=options)
    found.sparkContext.setLogLevel("ERROR")
    register(found)
    yield found
    found.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone master with two workers of two cores each."""
    with standalone(tmp_path_factory.mktemp("standalone")) as found:
        yield found
