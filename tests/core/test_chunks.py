"""The laws of a snapshot's chunks: every block once, every row its own number."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.chunks import FIRST, Size, cut, ordinal, waves

sizes = st.lists(st.builds(Size, st.integers(0, 40), st.integers(0, 400)), max_size=8)


@given(sizes, st.integers(1, 15))
def test_every_block_of_every_table_lies_in_exactly_one_chunk_and_in_order(tables: list[Size], most: int) -> None:
    found = [(span.table, block) for span in cut(tables, most) for block in range(span.first, span.end)]
    assert found == [(table, block) for table, size in enumerate(tables) for block in range(size.blocks)]
    assert all(span.end - span.first <= most for span in cut(tables, most))


@given(sizes, st.integers(1, 15))
def test_no_two_rows_have_one_ordinal_and_they_rise_as_they_are_read(tables: list[Size], most: int) -> None:
    places = [(span, block, place) for span in cut(tables, most) for block in range(span.first, span.end)
              for place in (1, 2, 1_200)]  # fmt: skip
    ordinals = [ordinal(span.before, f"({block},{place})".encode()) for span, block, place in places]
    assert ordinals == sorted(set(ordinals))


def test_a_chunk_of_a_table_with_much_stored_apart_has_fewer_blocks_of_its_own() -> None:
    assert [span.end for span in cut([Size(40, 40)], 20)] == [20, 40]
    assert [span.end for span in cut([Size(40, 160)], 20)] == [5, 10, 15, 20, 25, 30, 35, 40]


def test_ordinals_of_a_snapshot_are_below_those_of_any_transaction_up_to_the_largest_database() -> None:
    petabytes = 32 << 50
    assert FIRST < ordinal(0, b"(0,1)") < ordinal(petabytes // 8192 - 2**32, b"(4294967294,2047)") < 0


@given(st.lists(st.integers(), max_size=30), st.integers(1, 9))
def test_waves_are_all_of_it_some_at_a_time(items: list[int], most: int) -> None:
    found = list(waves(items, most))
    assert [item for wave in found for item in wave] == items
    assert all(1 <= len(wave) <= most for wave in found)
