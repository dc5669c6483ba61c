"""The embedded servers as pytest fixtures, each started once a test run and only when a test asks for it.

In a `conftest.py`: `pytest_plugins = ["strandline.stack.testing"]`.
"""

from collections.abc import Iterator

import pytest

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
def secure_kafka() -> Iterator[KafkaCluster]:
    """A Kafka cluster of two brokers, each with a second listener that asks for TLS and SASL."""
    with Stack(["kafka"], kafka_brokers=2, kafka_secure=True) as stack:
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
