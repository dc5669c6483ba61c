"""A snapshot cut into chunks: which blocks of which table a task reads, and the ordinal of every row.

An ordinal is made of the block and the place in it where the row lies, with the blocks of all tables counted through,
from -2^53 on. So ordinals are unique in a snapshot, rise in the order of reading, and are the same whoever reads the
chunk again. They are below 0: a transaction may be committed at the very LSN of the snapshot, which has nothing of it,
and its events, from 1 on, come after. And all readers of JSON take numbers of that size.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

# A block of 32 KiB, the largest that there are, has room for less than 1,200 rows.
PLACE_BITS: Final = 11
FIRST: Final = -(1 << 53)

Item = TypeVar("Item")


class Size(NamedTuple):
    """How large a table is."""

    blocks: int
    whole: int
    """With what is stored apart (TOAST), in blocks too."""


class Span(NamedTuple):
    """Some blocks of a table."""

    table: int
    """Its place among the sizes given."""
    first: int
    end: int
    before: int
    """The blocks of all tables before it."""


def cut(sizes: Sequence[Size], most: int) -> Iterator[Span]:
    """Tables in spans of at most so many blocks, fewer where much is stored apart. An empty table has none."""
    before = 0
    for table, (blocks, whole) in enumerate(sizes):
        step = max(1, most * blocks // max(blocks, whole, 1))
        for first in range(0, blocks, step):
            yield Span(table, first, min(first + step, blocks), before)
        before += blocks


def ordinal(before: int, place: bytes) -> int:
    """The ordinal of a row, by its ctid as Postgres prints it: (block,place)."""
    block, _, offset = place[1:-1].partition(b",")
    return FIRST + ((before + int(block)) << PLACE_BITS | int(offset))


def waves(items: Sequence[Item], most: int) -> Iterator[Sequence[Item]]:
    """So many at a time."""
    for first in range(0, len(items), most):
        yield items[first : first + most]
