"""What a person sees on stderr while records are read: a line that vanishes, and a summary that stays."""

import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from strandline.clock import Clock
from strandline.units import Nanos

REFRESH = Nanos(250_000_000)


def summary(read: int, kept: int, seconds: float, losses: int) -> str:
    """The last line: how many records, in what time, and what is missing."""
    counted = f"{kept:,} records" if kept == read else f"{kept:,} of {read:,} records"
    lost = f"; ranges of offsets lost, named above: {losses}" if losses else ""
    return f"{counted} in {seconds:.1f} s ({read / max(seconds, 0.001):,.0f} a second){lost}"


def progress_line(read: int, seconds: float, reached: int | None, partitions: pa.Table) -> str:
    """How fast it goes, the time in milliseconds of the last record, and how much there may be still."""
    parts = [f"{read:,} records", f"{read / max(seconds, 0.001):,.0f} a second"]
    if reached is not None:
        parts.append(f"at {np.datetime_as_string(np.datetime64(reached, 'ms'), unit='s', timezone='UTC')}")
    parts.append(f"{to_go(partitions):,} to go")
    return "   ".join(parts)


def to_go(partitions: pa.Table) -> int:
    """The offsets that have not been read, and the rows that have been and wait."""
    unread = pc.max_element_wise(pc.subtract(partitions["end"], partitions["position"]), 0)
    return int((pc.sum(unread).as_py() or 0) + (pc.sum(partitions["held_rows"]).as_py() or 0))


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
