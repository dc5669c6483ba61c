"""What is asked for follows what came: less where records grow much, and never more than a part of the buffer."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.foresight import FIRST_ASKED, MOST_ASKED, Foresight

MIB = 1 << 20


@given(st.integers(1 * MIB, 1024 * MIB), st.integers(1, 50), st.lists(st.floats(0.1, 1000), max_size=20))
def test_the_answers_of_all_leaders_should_take_no_more_than_half_the_buffer(
    buffer_bytes: int, leaders: int, growths: list[float]
) -> None:
    foresight = Foresight(buffer_bytes)
    foresight.leaders = leaders
    for growth in growths:
        foresight.grew(growth)
    assert 1 <= foresight.to_ask() <= MOST_ASKED
    assert foresight.to_ask() == 1 or foresight.unpacked(foresight.to_ask()) * leaders <= buffer_bytes / 2


def test_growth_is_believed_at_once_and_its_end_slowly() -> None:
    foresight = Foresight(256 * MIB)
    foresight.grew(100)
    assert foresight.unpacked(MIB) == 100 * MIB
    foresight.grew(2)
    assert foresight.unpacked(MIB) == 90 * MIB


def test_the_first_answers_are_small_and_each_may_be_twice_as_large_as_the_one_before() -> None:
    foresight = Foresight(1024 * MIB)
    asked: list[int] = []
    while not asked or asked[-1] < MOST_ASKED:
        asked.append(foresight.to_ask())
        foresight.came()
    assert asked == [FIRST_ASKED << doubled for doubled in range(len(asked))]
    assert foresight.to_ask() == MOST_ASKED
