"""A browser, and a site that has the gateway's client for it."""

from collections.abc import Iterator

import pytest

from tests.gateway.support import Site
from tests.report.browser import Browser


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if missing := Browser.missing():
        pytest.fail(missing, pytrace=False)
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site
