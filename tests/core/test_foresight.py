"""What is asked for follows what came: less where records grow much, and never more than a part of the buffer."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.foresight import LARGEST_BATCH, MOST_ASKED, Foresight

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


def test_an_answer_may_have_a_whole_batch_however_little_was_asked_for() -> None:
    foresight = Foresight(MIB)
    assert foresight.at_most(1) == LARGEST_BATCH
    foresight.came(7 * MIB)
    assert foresight.at_most(1) == 7 * MIB
