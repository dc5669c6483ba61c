"""Two clusters for all tests of the proxy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.stack.kafka import KafkaCluster
from strandline.stack.stack import Stack
from tests.proxy.support import COUNTS_FILE, Proxied, proxied


@pytest.fixture(scope="session")
def clusters() -> Iterator[tuple[KafkaCluster, KafkaCluster]]:
    """East and west, of one broker each."""
    with Stack(["kafka"], kafka_clusters=2) as stack:
        yield stack.kafka[0], stack.kafka[1]


@pytest.fixture(scope="session")
def proxy(clusters: tuple[KafkaCluster, KafkaCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    """Both as one, as its users run it: `eu.*` and `eu-*` belong to the west."""
    east, west = clusters
    with proxied(Path(tmp_path_factory.mktemp("proxy")), east=east.address, west=west.address) as running:
        yield running
        if kept := os.environ.get(COUNTS_FILE):
            running.keep_counts(Path(kept))
