"""The last part of a log in memory: everything from its first place to its end, within its bytes."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.recent import Recent

# How far behind the end each item lies, and its size.
ITEMS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 10)), max_size=60)


@given(ITEMS, st.integers(10, 40), st.integers(0, 250), st.integers(1, 70))
def test_what_is_held_is_all_from_the_first_place_on(
    items: list[tuple[int, int]], most_bytes: int, place: int, most: int
) -> None:
    recent: Recent[int] = Recent(5, most_bytes=most_bytes)
    written = []
    for skip, size in items:
        at = recent.end + skip
        recent.add(at, at, size)
        written.append(at)
        assert recent.nbytes <= most_bytes
    wanted = max(place, recent.first)
    found, reached = recent.since(wanted, most)
    expected = [at for at in written if at >= wanted]
    assert found == expected[:most]
    assert reached == (recent.end if len(expected) <= most else expected[most])
    before = [at for at in written if recent.first <= at < wanted]
    assert recent.before(wanted) == (before[-1] if before else None)


def test_what_is_forgotten_is_below_the_first_place() -> None:
    recent: Recent[str] = Recent(0, most_bytes=10)
    recent.add(0, "a", 6)
    recent.reach(7)
    recent.add(7, "b", 6)
    assert (recent.first, recent.end) == (7, 8)
