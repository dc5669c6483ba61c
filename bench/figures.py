"""How every benchmark reports: a table for people, then one line `name value` a figure, then the verdict."""

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

    @property
    def below(self) -> bool:
        return self.floor is not None and self.value < self.floor

    @property
    def above(self) -> bool:
        return self.ceiling is not None and self.value > self.ceiling

    @property
    def within(self) -> bool:
        return not self.below and not self.above


def report(title: str, figures: Sequence[Figure]) -> None:
    """Print the figures and exit 1 when one is below its floor or above its ceiling."""
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "floor", "ceiling", "what it is"):
        table.add_column(column, justify="right" if column in {"value", "floor", "ceiling"} else "left")
    for figure in figures:
        mark = " (below)" if figure.below else " (above)" if figure.above else ""
        bounds = ("" if bound is None else f"{bound:,g}" for bound in (figure.floor, figure.ceiling))
        table.add_row(figure.name, f"{figure.value:,.6g}{mark}", *bounds, figure.what)
    Console(width=120).print(table)
    for figure in figures:
        print(figure.name, f"{figure.value:.6g}")
    sys.exit(0 if all(figure.within for figure in figures) else 1)
