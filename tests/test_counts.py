"""A count is read as it is said."""

import pytest

from strandline.counts import counted


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1_234_567, "1,234,567 records")]
)
def test_one_is_told_as_one_and_all_else_as_many(count: int, told: str) -> None:
    assert counted(count, "record") == told


def test_what_follows_changes_with_it() -> None:
    assert [counted(count, "row has", "rows have") for count in (1, 2)] == ["1 row has", "2 rows have"]
