"""A browser for the tests of the report's page."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strandline.report.page import render
from strandline.report.summary import Summary
from tests.report.browser import Browser

Show = Callable[..., Browser]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if missing := Browser.missing():
        pytest.fail(missing, pytrace=False)
    with Browser() as browser:
        yield browser


@pytest.fixture
def show(chromium: Browser, tmp_path: Path) -> Iterator[Show]:
    """Opens a summary's page. After the test the page must have complained of nothing and asked for nothing."""
    chromium.requests()
    chromium.console()

    def show(summary: Summary, *, width: int = 1280, fragment: str = "") -> Browser:
        page = tmp_path / "report.html"
        page.write_text(render(summary), encoding="utf-8")
        chromium.resize(width, 900)
        chromium.open(page.as_uri() + fragment)
        return chromium

    yield show
    assert chromium.console() == []
    assert chromium.requests() == []
