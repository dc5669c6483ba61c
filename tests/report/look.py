"""The shop's page as pictures, for a critical eye: `python -m tests.report.look DIRECTORY`."""

import sys
from pathlib import Path

from strandline.report.page import render
from tests.report.browser import Browser
from tests.report.shop import shop

ENDPOINT, EXAMPLE = "#endpoint=GET%20%2Forders%2F%7Bn%7D", "#example=c17-4"
PICTURES = {
    "wide": (1600, False, ""),
    "dark": (1600, True, ""),
    "narrow": (360, False, ""),
    "endpoint": (1600, False, ENDPOINT),
    "endpoint-narrow": (360, True, ENDPOINT),
    "example": (1400, False, EXAMPLE),
    "example-dark": (1400, True, "#example=c230-11"),
    "example-narrow": (360, False, EXAMPLE),
}


def look(directory: Path) -> None:
    """Writes the page and its pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "shop.html"
    page.write_text(render(shop()), encoding="utf-8")
    with Browser() as browser:
        for name, (width, dark, fragment) in PICTURES.items():
            browser.resize(width, 900, dark=dark)
            browser.open(page.absolute().as_uri() + fragment)
            browser.until("return document.querySelectorAll('.chart svg').length >= 2")
            # A dialog is as high as the window; everything else is seen whole.
            if not fragment.startswith("#example"):
                browser.resize(width, browser.run("return document.documentElement.scrollHeight"), dark=dark)
            browser.screenshot(directory / f"{name}.png")


if __name__ == "__main__":
    look(Path(sys.argv[1]))
