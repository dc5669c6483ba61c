"""Kafka's jars without a network."""

import pytest

from strandline.stack import KafkaCluster
from tests.support import jars_on_disk


@pytest.fixture(scope="session")
def local_repository(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a first run fetches its jars from disk (asking for `kafka` makes sure of a copy)."""
    return jars_on_disk(tmp_path_factory.mktemp("ivy"))
