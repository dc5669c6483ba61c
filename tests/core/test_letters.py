"""Dead letters are never put away in silence, and never told of more often than is of use."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.letters import Letters
from strandline.units import Nanos

EVERY = Nanos(10)


def test_the_first_is_told_at_once_with_its_reason_and_the_others_as_a_count() -> None:
    letters = Letters("directory dead", EVERY)
    assert letters.line(Nanos(0)) is None
    letters.add(1, "0/12 3: too large")
    told = "records that the stream does not take, put away in directory dead: "
    assert letters.line(Nanos(5)) == f"{told}1; the first is 0/12 3: too large"
    letters.add(2_000, "0/13 0: no key")
    letters.add(1, "0/14 0: too large")
    assert letters.line(Nanos(14)) is None
    assert letters.line(Nanos(15)) == f"{told}2,001, 2,002 since the start; the first is 0/13 0: no key"
    assert letters.line(Nanos(99)) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7))))
def test_all_are_told_by_the_end_and_lines_keep_their_distance(steps: list[tuple[int, int]]) -> None:
    letters, now, times, told = Letters("p", EVERY), 0, list[int](), list[str]()
    for count, passed in steps:
        now += passed
        letters.add(count, "x")
        if (line := letters.line(Nanos(now))) is not None:
            times.append(now)
            told.append(line)
    if (line := letters.line(None)) is not None:
        told.append(line)
    assert all(later - earlier >= EVERY for earlier, later in pairwise(times))
    counts = [int(line.partition("put away in p: ")[2].replace(";", ",").partition(",")[0]) for line in told]
    assert sum(counts) == sum(count for count, _ in steps)
