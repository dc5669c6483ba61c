"""The command line of every benchmark: each amount is an option, and `--quick` takes a preset of small ones.

A benchmark declares its amounts as a frozen dataclass whose defaults are those of the full run, and a second instance
for the smoke run:

    @dataclass(frozen=True)
    class Amounts:
        rows: int = 1_000_000

    QUICK = Amounts(rows=5_000)

    amounts, is_quick = parse("bench.cdc", Amounts(), QUICK)

The smoke run takes the same path on the same servers in seconds. Its amounts are too small for its figures to mean
anything, so `bench.figures.report` judges only those that are exact.
"""

import argparse
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def parse(module: str, full: T, quick: T) -> tuple[T, bool]:
    """Read the command line: the amounts to run with, and whether this is the smoke run.

    `module` is the benchmark's own name. A field's metadata goes to `add_argument` (`choices`, `help`); the type of an
    option is that of the field's default, and a tuple takes several values. An option that is given wins over both
    presets.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of seconds with small amounts; figures are not judged"
    )
    for field in fields(full):
        usual, small = getattr(full, field.name), getattr(quick, field.name)
        several = isinstance(usual, tuple)
        how: dict[str, Any] = {"help": f"default: {_shown(usual)}; quick: {_shown(small)}", **field.metadata}
        if several:
            how["nargs"] = "+"
        kind = type(usual[0] if several else usual)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=argparse.SUPPRESS, **how)
    given = vars(parser.parse_args())
    is_quick = given.pop("quick")
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return replace(quick if is_quick else full, **chosen), is_quick


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
