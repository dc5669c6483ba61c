"""Where a client is when the log under it is not what it was: what it saw and is no more is told, and only that."""

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from strandline.core.gap import Gap, Reason
from strandline.gateway.feed import Feed, Record
from strandline.gateway.hub import Hub
from strandline.gateway.kept import Kept
from strandline.gateway.whereabouts import Behind, Whereabouts
from strandline.kafka.partition import Partition
from strandline.wire.asked import NotUnderstood
from strandline.wire.resume_token import Position
from tests.gateway.support import NAMING

OFFSETS = st.integers(0, 30)


def feed(topic_id: str, start: int) -> Feed:
    return Feed(Partition("t", 0), topic_id, NAMING, start, most_bytes=1000)


@st.composite
def behind(draw: st.DrawFn) -> Behind:
    """One in the middle of a replay; it may have been live before, on a part that it is to pass over."""
    since = draw(OFFSETS)
    position = since + draw(OFFSETS)
    place = Behind(Position(position, "id"), since=since)
    if draw(st.booleans()):
        barrier = position + draw(OFFSETS)
        place.barrier, place.then = barrier, barrier + draw(OFFSETS)
    return place


def seen(place: Behind) -> set[int]:
    """All before its position, on this connection or an earlier one, and what it had live."""
    live = set() if place.barrier is None else set(range(place.barrier, place.then))
    return live | set(range(place.position.offset))


@given(behind(), OFFSETS)
def test_of_a_log_that_was_cut_back_all_that_was_seen_behind_its_end_is_told_and_nothing_else(
    place: Behind, end: int
) -> None:
    old, new = feed("id", 100), feed("id", end)
    at = Whereabouts(Hub())
    at.behind[old] = place
    before = replace(place)
    told = at.replace(old, new, Gap(end, 100, Reason.TRUNCATED))
    assert {offset for gap in told for offset in range(gap.first, gap.end)} == {n for n in seen(before) if n >= end}
    assert {gap.reason for gap in told} <= {Reason.TRUNCATED}
    assert list(at.behind) == [new]
    # What is still there of what it had seen does not come again, and all before the end that it had not seen comes.
    assert {n for n in seen(at.behind[new]) if n < end} == {n for n in seen(before) if n < end}
    assert at.behind[new].position.offset == min(before.position.offset, end)


def test_who_is_being_replayed_to_is_told_where_the_topic_was_made_anew_and_begins_with_the_new_one() -> None:
    old, new = feed("old", 100), feed("new", 0)
    at = Whereabouts(Hub())
    at.behind[old] = Behind(Position(40, "old"), since=30)
    assert at.replace(old, new, Gap(100, 100, Reason.RECREATED)) == [Gap(40, 40, Reason.RECREATED)]
    assert at.behind == {new: Behind(Position(0, "new"), since=0)}


@pytest.mark.parametrize("topic_id", ["old", "new", None])
def test_a_partition_that_a_topic_made_anew_has_no_more_is_told_and_any_other_that_is_not_there_is_refused(
    topic_id: str | None,
) -> None:
    hub = Hub()
    hub.feeds[Partition("t", 0)] = feed("new", 5)
    at = Whereabouts(hub)
    told = {"t": {0: Position(40, topic_id), 1: Position(7, topic_id)}}
    gone = at.take_gone(told)
    if topic_id == "old":
        assert gone == [(Partition("t", 1), Gap(7, 7, Reason.RECREATED))]
        assert list(at.places(told).values()) == [Behind(Position(40, "old"))]
    else:
        assert gone == []
        with pytest.raises(NotUnderstood, match="no partition 1"):
            at.places(told)


@pytest.mark.parametrize("reason", [Reason.RECREATED, Reason.TRUNCATED])
def test_who_has_only_said_where_it_was_is_told_when_the_log_has_been_asked(reason: Reason) -> None:
    old, new = feed("old", 100), feed("new", 5)
    at = Whereabouts(Hub())
    at.behind[old] = Behind(Position(40, "old", 3))
    assert at.replace(old, new, Gap(5, 100, reason)) == []
    assert at.behind == {new: Behind(Position(40, "old", 3))}


@pytest.mark.parametrize(
    ("gap", "kept", "first"),
    [
        (Gap(3, 10, Reason.TRUNCATED), [5, 6], 5),
        (Gap(3, 10, Reason.TRUNCATED), [], 10),
        (Gap(10, 10, Reason.RECREATED), [5, 6], 5),
        (Gap(10, 10, Reason.RECREATED), [], 10),
    ],
)
def test_a_slow_client_is_in_the_old_log_until_it_is_told_that_there_is_another(
    gap: Gap, kept: list[int], first: int
) -> None:
    hub, old, new = Hub(), feed("old", 10), feed("new", 3)
    old.epoch = 4
    hub.feeds[new.partition] = new
    back = Kept()
    for offset in kept:
        back.put(old, Record(offset, "a", b""))
    back.miss(old, gap)
    back.put(new, Record(3, "a", b""))
    # Who comes back with that is told what was lost: by the topic's id, or by the epoch.
    assert Whereabouts(hub).positions(back.firsts()) == {"t": {0: Position(first, "old", 4)}}


STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "hear more", "resume", "replay"]), st.integers(1, 5)), min_size=4, max_size=12
)


@settings(max_examples=500)
@given(STEPS)
def test_nothing_that_is_wanted_is_passed_over_for_having_come_before_more_was_wanted(
    steps: list[tuple[str, int]],
) -> None:
    hub, one = Hub(), feed("id", 0)
    hub.feeds[one.partition] = one
    at = Whereabouts(hub)
    at.begin_live()
    had: list[set[int]] = [set()]
    """By channel, in the order in which they were subscribed to; every record is for all of them."""
    due = [0]
    """From where each is to have all."""

    def replay(most: int) -> None:
        for _ in range(most):
            place = at.behind.get(one)
            if place is None:
                return
            offset = place.position.offset
            if place.barrier is not None and offset >= place.barrier:
                offset, place.barrier = max(offset, place.then), None
            elif offset < one.end:
                for heard in had:
                    heard.add(offset)
                offset += 1
            place.position = Position(offset, "id")
            if offset == one.end and place.barrier is None and place.since is not None:
                at.go_live(one, place.since)

    for step, amount in [*steps, ("replay", 1000)]:
        match step:
            case "come":
                for offset in range(one.end, one.end + amount):
                    if one not in at.behind:
                        for heard in had:
                            heard.add(offset)
                    one.recent.reach(offset + 1)
            case "hear more":
                at.hear_more()
                had.append(set())
                due.append(at.behind[one].position.offset if one in at.behind else one.end)
            case "resume":
                first = max(0, one.end - 3 * amount)
                # What a replay before it has not sent yet is not asked for any more.
                due = [first if one in at.behind else min(first, place) for place in due]
                at.go_behind({one: Behind(Position(first, "id"), since=first)})
            case _:
                replay(amount)
    assert not at.behind
    for heard, first in zip(had, due, strict=True):
        assert heard >= set(range(first, one.end))
