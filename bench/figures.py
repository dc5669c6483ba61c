"""How every benchmark reports: a table for people, then one line `name value` a figure, then the verdict."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, and the floor that it must reach where there is one."""

    name: str
    value: float
    what: str
    floor: float | None = None

    @property
    def reached(self) -> bool:
        return self.floor is None or self.value >= self.floor


def report(title: str, figures: Sequence[Figure]) -> None:
    """Print the figures and exit 1 when one is below its floor."""
    table = Table(title=title, title_justify="left")
    for column in ("figure", "value", "floor", "what it is"):
        table.add_column(column, justify="right" if column in {"value", "floor"} else "left")
    for figure in figures:
        floor = "" if figure.floor is None else f"{figure.floor:,g}"
        mark = "" if figure.reached else " (below)"
        table.add_row(figure.name, f"{figure.value:,.6g}{mark}", floor, figure.what)
    Console(width=120).print(table)
    for figure in figures:
        print(figure.name, f"{figure.value:.6g}")
    sys.exit(0 if all(figure.reached for figure in figures) else 1)
