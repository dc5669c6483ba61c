"""Where to cut a log of several partitions, so that everything before the cut comes before everything behind it.

Rows are ordered by (effective time, partition, offset); a cut is a place in that order. At a cut of time `t`, each
partition is divided at its first row of that time or a later one. Where many rows have one time, a cut may also lie
among them: then the partitions before some one are divided behind their rows of that time, and those after it before.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# Halving every second time comes from all the numbers of 64 bits to one of them.
MOST_GUESSES = 130


@dataclass(frozen=True, slots=True)
class Cut(Generic[Key]):
    """Where each partition is divided, and the time at which: nothing before the cut is later."""

    time: int
    offsets: Mapping[Key, int]


def cut_within_a_time(time: int, firsts: Mapping[Key, int], behind: Mapping[Key, int], rows: int) -> Cut[Key]:
    """Cut behind so many rows of one time, given the first row of that time and the first behind them by partition."""
    offsets = {}
    for key, first in firsts.items():
        taken = min(rows, behind[key] - first)
        offsets[key] = first + taken
        rows -= taken
    return Cut(time, offsets)


def low_watermark(time: int, lasts: Iterable[int]) -> int:
    """The time up to which an epoch takes rows: behind the last epoch's, given the last time of each unread partition.

    A partition that has not come further than the last epoch has all its rows taken by this one, and holds nobody.
    """
    return min((last for last in lasts if last > time), default=time)


def even_targets(rows: int, slices: int) -> list[int]:
    """How many rows lie before each of the cuts that make so many slices."""
    return [rows * number // slices for number in range(1, slices)]


def next_guess(low: tuple[int, int], high: tuple[int, int], target: int, attempt: int) -> int:
    """A time to try between two that are known, each with the rows before it, to come near a number of rows.

    By proportion, which takes few steps where rows come evenly; every second time by halves, which always ends.
    """
    (low_time, low_rows), (high_time, high_rows) = low, high
    if attempt % 2 == 1 or high_rows <= low_rows:
        guess = (low_time + high_time) // 2
    else:
        guess = low_time + (high_time - low_time) * (target - low_rows) // (high_rows - low_rows)
    return max(low_time + 1, min(high_time - 1, guess))
