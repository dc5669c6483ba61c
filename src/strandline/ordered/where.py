"""Which rows to keep: conditions such as `key=ab`, `value~^{`, `header.tide=high`, decided on whole columns.

Keys and values are bytes; what is written in a condition is taken as UTF-8. A row that has no key, no value or no such
header does not meet a condition on it.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import OptionError, did_you_mean

HEADER = "header."
FIELDS = ("key", "value", f"{HEADER}NAME", "partition")
CONDITION = re.compile(r"(?P<field>[^=~]*)(?P<operator>[=~])(?P<operand>.*)", re.DOTALL)
HIGHEST_PARTITION = 2**31 - 1
NUMBER = re.compile(r"[0-9]{1,10}")


class Condition(Protocol):
    """One condition."""

    def holds(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """For each row, whether it is met."""
        ...


@dataclass(frozen=True, slots=True)
class Equals:
    """The bytes are these."""

    wanted: bytes

    def holds(self, column: pa.BinaryArray) -> pa.BooleanArray:
        """For each item, whether it is so; not where there is none."""
        return pc.equal(column, pa.scalar(self.wanted, pa.binary())).fill_null(False)


@dataclass(frozen=True, slots=True)
class Matches:
    """The regular expression (RE2) is found in it."""

    pattern: str

    def __post_init__(self) -> None:
        try:
            self.holds(pa.array([b""], pa.binary()))
        except pa.ArrowInvalid as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            raise OptionError(f"'{self.pattern}' is not a regular expression: {reason}") from None

    def holds(self, column: pa.BinaryArray) -> pa.BooleanArray:
        """For each item, whether it is so; not where there is none."""
        # As text, for which `.` is a character and not a byte. RE2 passes over what is not UTF-8.
        return pc.match_substring_regex(column.view(pa.string()), pattern=self.pattern).fill_null(False)


@dataclass(frozen=True, slots=True)
class OfColumn:
    """A test of the key or of the value."""

    column: str
    test: Equals | Matches

    def holds(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """For each row, whether it is met."""
        return self.test.holds(batch[self.column])


@dataclass(frozen=True, slots=True)
class OfHeader:
    """A test of any one of the headers with a name."""

    name: str
    test: Equals | Matches

    def holds(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """For each row, whether it is met."""
        headers = batch["headers"]
        flat = pc.list_flatten(headers)
        is_named = pc.equal(pc.struct_field(flat, "key"), self.name)
        found = pc.and_(is_named, self.test.holds(pc.struct_field(flat, "value")))
        kept = np.zeros(batch.num_rows, dtype=np.bool_)
        kept[pc.list_parent_indices(headers).filter(found).to_numpy()] = True
        return pa.array(kept)


@dataclass(frozen=True, slots=True)
class OfPartition:
    """The number of the partition."""

    number: int

    def holds(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """For each row, whether it is met."""
        return pc.equal(batch["partition"], pa.scalar(self.number, pa.int32()))


@dataclass(frozen=True, slots=True)
class Where:
    """Conditions that must all hold."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Read conditions; raises OptionError."""
        return cls(tuple(_parse(text) for text in texts))

    @property
    def partitions(self) -> frozenset[int]:
        """The numbers of the partitions that conditions name."""
        return frozenset(condition.number for condition in self.conditions if isinstance(condition, OfPartition))

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that meet all conditions, in the same order."""
        for condition in self.conditions:
            batch = batch.filter(condition.holds(batch))
        return batch


TESTS: dict[str, Callable[[str], Equals | Matches]] = {"=": lambda text: Equals(text.encode()), "~": Matches}


def _parse(text: str) -> Condition:
    parts = CONDITION.fullmatch(text)
    if parts is None:
        raise OptionError(f"'{text}' is no condition; write one such as key=ab, value~^ab or header.NAME=ab")
    if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
        # What Python makes of bytes on the command line that are not UTF-8.
        raise OptionError(f"{text!a} is no condition: it is not UTF-8; value~REGEX finds what is around such bytes")
    field, operator, operand = parts.groups()
    if field == "partition":
        if operator == "~" or not NUMBER.fullmatch(operand) or int(operand) > HIGHEST_PARTITION:
            raise OptionError(f"'{text}': a partition is a number, such as partition=3")
        return OfPartition(int(operand))
    if field.startswith(HEADER) and field != HEADER:
        return OfHeader(field.removeprefix(HEADER), TESTS[operator](operand))
    if field not in {"key", "value"}:
        raise OptionError(f"'{text}': field '{field}' is unknown; {did_you_mean(field, FIELDS)}")
    return OfColumn(field, TESTS[operator](operand))
