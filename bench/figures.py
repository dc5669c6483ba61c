"""How every benchmark reports: a table for people, then one line `name value` a figure, then the verdict."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and the floor that it must reach or the ceiling that it must keep where there is one."""

    name: str
    value: float
    what: str
    floor: float | None = None
    ceiling: float | None = None
    is_exact: bool = False
    """Whether its bound holds for any amount of work, such as "no row out of order": judged in a smoke run too."""

    @property
    def below(self) -> bool:
        return self.floor is not None and self.value < self.floor

    @property
    def above(self) -> bool:
        return self.ceiling is not None and self.value > self.ceiling

    @property
    def within(self) -> bool:
        return not self.below and not self.above


def report(title: str, figures: Sequence[Figure], *, is_quick: bool = False) -> None:
    """Print the figures and exit 1 when one is below its floor or above its ceiling.

    In a smoke run (`is_quick`) only the exact figures are judged. In both, a benchmark without figures and a figure
    that is no finite number raise `AssertionError`.
    """
    unmeasured = [figure.name for figure in figures if not math.isfinite(figure.value)]
    if unmeasured or not figures:
        raise AssertionError(f"figures without a value: {', '.join(unmeasured) or 'all of them'}")
    judged = [figure for figure in figures if figure.is_exact or not is_quick]
    table = Table(title=f"{title} (quick: not judged)" if is_quick else title, title_justify="left")
    for column in ("figure", "value", "floor", "ceiling", "what it is"):
        table.add_column(column, justify="right" if column in {"value", "floor", "ceiling"} else "left")
    for figure in figures:
        mark = "" if figure not in judged else " (below)" if figure.below else " (above)" if figure.above else ""
        bounds = ("" if bound is None else f"{bound:,g}" for bound in (figure.floor, figure.ceiling))
        table.add_row(figure.name, f"{figure.value:,.6g}{mark}", *bounds, figure.what)
    Console(width=120).print(table)
    for figure in figures:
        print(figure.name, f"{figure.value:.6g}")
    sys.exit(0 if all(figure.within for figure in judged) else 1)
