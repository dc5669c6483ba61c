"""The embedded servers as pytest fixtures, each started once a test run and only when a test asks for it.

In a `conftest.py`: `pytest_plugins = ["strandline.stack.testing"]`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.stack.cache import cache_dir
from strandline.stack.jars import kafka_version, pinned
from strandline.stack.kafka import KafkaCluster
from strandline.stack.kinesis import Kinesis
from strandline.stack.postgres import Postgres
from strandline.stack.stack import Stack


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """A Kafka cluster of one broker."""
    with Stack(["kafka"]) as stack:
        yield stack.kafka[0]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A Postgres server with `wal_level=logical`."""
    with Stack(["postgres"]) as stack:
        assert stack.postgres is not None  # noqa: S101  (asked for just above)
        yield stack.postgres


@pytest.fixture(scope="session")
def kinesis() -> Iterator[Kinesis]:
    """A Kinesis endpoint."""
    with Stack(["kinesis"]) as stack:
        assert stack.kinesis is not None  # noqa: S101  (asked for just above)
        yield stack.kinesis


def jars_on_disk(directory: Path) -> dict[str, str]:
    """Copy Kafka's jars from the cache to a package server on disk.

    Returns the environment in which they are fetched from there, so that a first run can be tried without a network.
    """
    for jar in pinned():
        place = directory / "local" / jar.organisation / jar.module / jar.revision / "jars" / f"{jar.module}.jar"
        place.parent.mkdir(parents=True)
        shutil.copy(cache_dir() / f"kafka-{kafka_version()}" / jar.file_name, place)
    return {"JAVA_TOOL_OPTIONS": f"-Divy.default.ivy.user.dir={directory}"}
