"""What is told of progress: counts, the time reached, and what there is still to come."""

import pyarrow as pa

from strandline.cli.progress import progress_line, summary, to_go
from strandline.ordered.consumer import PARTITIONS

NEW_YEAR = 1_767_225_600_000


def partitions(*rows: tuple[int, int, int | None, int]) -> pa.Table:
    names = ("position", "end", "timestamp", "held_rows")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=PARTITIONS)


def test_what_is_read_and_waits_is_still_to_go() -> None:
    # The second has been read beyond the end that it had at the start.
    assert to_go(partitions((10, 100, NEW_YEAR, 4), (60, 50, NEW_YEAR, 1))) == 95


def test_the_line_says_how_fast_how_far_and_how_much_there_is_still() -> None:
    line = progress_line(3_000, 2.0, NEW_YEAR + 2_900, partitions((1, 9, NEW_YEAR, 0)))
    assert line == "3,000 records   1,500 a second   at 2026-01-01T00:00:02Z   8 to go"


def test_before_anything_is_read_no_time_is_reached() -> None:
    assert progress_line(0, 0.0, None, partitions((0, 9, None, 0))) == "0 records   0 a second   9 to go"


def test_the_summary_says_what_was_read_what_was_kept_and_what_is_lost() -> None:
    assert summary(3_000, 3_000, 2.0, 0) == "3,000 records in 2.0 s (1,500 a second)"
    assert summary(3_000, 7, 2.0, 0) == "7 of 3,000 records in 2.0 s (1,500 a second)"
    assert summary(1, 1, 2.0, 0) == "1 record in 2.0 s (0 a second)"
    assert summary(0, 0, 0.0, 2).endswith("; ranges of offsets lost, named above: 2")
