"""Where a client goes on: never behind what it wants, and every offset between is told."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.core.gap import Gap, Log, Reason, begin

OFFSETS = st.integers(0, 50)


@given(OFFSETS, OFFSETS, OFFSETS)
def test_offsets_that_are_passed_over_are_told_and_no_others(offset: int, end: int, horizon: int) -> None:
    log = Log("id", end, min(horizon, end))
    first, gaps = begin(offset, log, topic_id="id")
    told = {number for gap in gaps for number in range(gap.first, gap.end)}
    assert first <= end
    assert told == (set(range(offset, first)) if offset <= end else set(range(end, offset)))


@given(OFFSETS, OFFSETS, OFFSETS)
def test_what_the_cluster_has_lost_since_is_told_and_read_anew(offset: int, end: int, epoch_end: int) -> None:
    first, gaps = begin(offset, Log("id", max(end, epoch_end)), topic_id="id", epoch_end=epoch_end)
    if epoch_end < offset:
        assert gaps == [Gap(epoch_end, offset, Reason.TRUNCATED)]
        assert first == epoch_end
    else:
        assert Reason.TRUNCATED not in {gap.reason for gap in gaps}


@given(OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_what_was_seen_since_is_lost_only_with_what_the_epoch_is_known_of(
    seen: int, since: int, end: int, epoch_end: int
) -> None:
    offset = seen + since
    log = Log("id", max(end, epoch_end, offset))
    first, gaps = begin(offset, log, topic_id="id", epoch_end=epoch_end, seen=seen)
    if epoch_end < seen:
        assert (first, gaps) == (epoch_end, [Gap(epoch_end, offset, Reason.TRUNCATED)])
    else:
        assert (first, gaps) == (offset, [])


def test_another_log_of_the_same_name_is_read_from_its_beginning() -> None:
    assert begin(40, Log("new", 3), topic_id="old") == (0, [Gap(40, 40, Reason.RECREATED)])
