"""The laws of a beginning: nothing is lost in silence, no row comes after a change, no slot is made in vain."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.beginning import Found, Lost, Make, ReadOn, RowsTooLate, TakeAgain, Unfinished, begin

POSITIONS = st.integers(0, 5)
MAYBE = st.none() | POSITIONS
FOUND = st.builds(
    Found,
    has_slot=st.booleans(),
    unfinished=st.none() | st.builds(Unfinished, start=MAYBE),
    acknowledged=MAYBE,
    checkpointed=MAYBE,
)


@given(FOUND, st.booleans())
def test_a_slot_is_made_where_there_is_none_and_nothing_was_delivered_and_nowhere_else(
    found: Found, wants_rows: bool
) -> None:
    is_fresh = not found.has_slot and found.acknowledged is None and found.checkpointed is None
    assert isinstance(begin(found, wants_rows=wants_rows), Make) == is_fresh


@given(FOUND, st.booleans())
def test_a_slot_that_is_gone_after_something_was_delivered_is_a_loss_from_the_last_of_it(
    found: Found, wants_rows: bool
) -> None:
    decided = begin(found, wants_rows=wants_rows)
    delivered = {found.acknowledged, found.checkpointed} - {None}
    if not found.has_slot and delivered:
        assert isinstance(decided, Lost)
        assert decided.delivered in delivered
        assert all(position is not None and position <= decided.delivered for position in delivered)
    else:
        assert not isinstance(decided, Lost)


@given(FOUND)
def test_where_rows_are_not_wanted_none_are_sent(found: Found) -> None:
    decided = begin(found, wants_rows=False)
    assert not isinstance(decided, TakeAgain | RowsTooLate)
    assert decided == Make(with_rows=False, abandoned=found.unfinished) or not isinstance(decided, Make)


@given(FOUND, st.booleans())
def test_a_slot_that_is_there_with_nothing_due_is_read_on_whatever_is_wanted(found: Found, wants_rows: bool) -> None:
    found = found._replace(has_slot=True, unfinished=None)
    assert begin(found, wants_rows=wants_rows) == ReadOn(leaves_unfinished=False)


@given(FOUND, st.booleans())
def test_rows_that_are_due_are_sent_or_it_is_told_that_they_are_not(found: Found, wants_rows: bool) -> None:
    match begin(found, wants_rows=wants_rows):
        case ReadOn(leaves_unfinished):
            assert leaves_unfinished == (found.unfinished is not None)
        case Make(_, abandoned):
            assert abandoned == found.unfinished
        case TakeAgain() | RowsTooLate():
            assert found.unfinished is not None
        case Lost():
            pass


@given(FOUND, st.booleans())
def test_no_row_is_sent_after_a_change(found: Found, wants_rows: bool) -> None:
    decided = begin(found, wants_rows=wants_rows)
    if isinstance(decided, TakeAgain):
        assert found.unfinished is not None
        # What was delivered, if anything, was of before the slot was made.
        start = found.unfinished.start
        assert found.acknowledged is None or (start is not None and found.acknowledged <= start)
    if isinstance(decided, Make):
        assert found.acknowledged is None
