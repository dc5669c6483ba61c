"""The checker's memory: it finds no fault with what is right, and one with every single cheat."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.witness import Witness

LENGTH = 20


@st.composite
def courses(draw: st.DrawFn) -> tuple[int, list[int]]:
    """How many records were deleted before anybody saw them, and which of the others are on the client's channels."""
    lost = draw(st.integers(2, 8))
    return lost, sorted(draw(st.sets(st.integers(lost, LENGTH - 1), min_size=3)))


def witnessed(lost: int, seen: list[int], gap_end: int) -> list[str]:
    witness = Witness(0)
    witness.missed(0, gap_end - 1)
    for offset in seen:
        witness.saw(offset)
    return witness.check(range(lost), LENGTH, range(lost)) + witness.check(seen, LENGTH, range(lost))


@given(courses())
def test_a_true_course_has_no_faults(course: tuple[int, list[int]]) -> None:
    lost, written = course
    assert witnessed(lost, written, lost) == []


@given(courses(), st.data())
def test_a_record_dropped_repeated_or_out_of_order_is_a_fault(
    course: tuple[int, list[int]], data: st.DataObject
) -> None:
    lost, written = course
    place = data.draw(st.integers(0, len(written) - 2))
    for cheat in (
        written[:place] + written[place + 1 :],
        [*written[: place + 1], *written[place:]],
        [*written[:place], written[place + 1], written[place], *written[place + 2 :]],
    ):
        witness = Witness(0)
        witness.missed(0, lost - 1)
        for offset in cheat:
            witness.saw(offset)
        assert witness.check(written, LENGTH, range(lost))


@given(courses())
def test_a_gap_that_is_one_too_long_or_too_short_is_a_fault(course: tuple[int, list[int]]) -> None:
    lost, written = course
    for end in (lost - 1, lost + 1):
        witness = Witness(0)
        witness.missed(0, end - 1)
        for offset in range(lost, LENGTH):
            if offset >= end:
                witness.saw(offset)
        assert witness.check(range(LENGTH), LENGTH, range(lost))
    assert written
