"""A database of its own for every test of change capture, on Postgres 16 and 18."""

from collections.abc import Iterator

import pytest

from strandline.stack.postgres import Postgres
from tests.cdc.support import Place


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    """A database on Postgres 18."""
    with Place(postgres) as place:
        yield place


@pytest.fixture(params=[16, 18])
def either(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A database on Postgres 16, and one on 18."""
    server: Postgres = request.getfixturevalue("postgres16" if request.param == 16 else "postgres")
    with Place(server) as place:
        yield place
