"""A line at the bottom of a terminal that tells how it goes, and vanishes."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from strandline.clock import Clock
from strandline.units import Nanos

REFRESH = Nanos(250_000_000)


class ProgressLine:
    """One line at the bottom of a terminal; on anything else, nothing."""

    def __init__(self, clock: Clock) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._is_on = sys.stderr.isatty() and not self._console.is_dumb_terminal
        self._clock = clock
        self._drawn = Nanos(0)
        self._is_drawn = False

    def show(self, line: Callable[[], str]) -> None:
        """Draw the line, unless it was drawn a moment ago."""
        now = self._clock.monotonic()
        if not self._is_on or now - self._drawn < REFRESH:
            return
        self.clear()
        text = Text(line(), "dim")
        text.truncate(self._console.width - 1, overflow="ellipsis")
        self._console.print(text, end="")
        self._drawn, self._is_drawn = now, True

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._is_drawn:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._is_drawn = False
