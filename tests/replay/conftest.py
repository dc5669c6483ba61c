"""What the tests of the replay share."""

import secrets

import pytest


@pytest.fixture
def topic() -> str:
    """The name of a topic of the test's own."""
    return f"replay-{secrets.token_hex(4)}"
