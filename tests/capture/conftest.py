"""Limits for the tests of this directory."""

import pytest

from strandline.capture import publisher
from tests.support import TIMEOUT


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture waits for its topic as long as a busy broker may take to make it."""
    monkeypatch.setattr(publisher, "TOPIC_TIMEOUT_S", TIMEOUT)
