"""Servers for the tests of this directory."""

from collections.abc import Iterator

import pytest

from strandline.stack import KafkaCluster, Stack


@pytest.fixture(scope="package")
def pair() -> Iterator[KafkaCluster]:
    """A cluster of two brokers. Tests may end its processes, and start them again."""
    with Stack(["kafka"], kafka_brokers=2) as stack:
        yield stack.kafka[0]
