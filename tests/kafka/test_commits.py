"""What is to be committed is, once; the mailbox keeps order and bounds; a silence is remembered until forgiven."""

import asyncio
from collections.abc import Sequence
from random import Random
from threading import Thread
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from strandline.kafka.commits import Commits
from strandline.kafka.events import AtEnd
from strandline.kafka.mailbox import Mailbox
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.kafka.pulse import Pulse
from strandline.units import Nanos
from tests.support import TIMEOUT

if TYPE_CHECKING:
    from strandline.kafka.claim import Claim

EVERY = Nanos(10)
PLACES = [Partition("t", number) for number in range(3)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("done"), st.tuples(st.sampled_from(PLACES), st.integers(min_value=0, max_value=9))),
        st.tuples(st.just("take"), st.booleans()),
        st.tuples(st.just("answer"), st.booleans()),
        st.tuples(st.just("forget"), st.sampled_from(PLACES)),
    ),
    max_size=60,
)


@given(STEPS)
def test_commits_go_out_one_at_a_time_never_back_and_none_is_forgotten(steps: Sequence[tuple[str, object]]) -> None:
    commits = Commits(EVERY)
    highest = dict.fromkeys(PLACES, 0)
    wanted: dict[Partition, int] = {}
    marks: dict[Partition, int] = {}
    sent: dict[Partition, int] | None = None
    for now, (step, detail) in enumerate(steps):
        if step == "done":
            assert isinstance(detail, tuple)
            place, offset = detail
            if offset >= highest[place]:
                highest[place] = wanted[place] = offset
            commits.add({place: offset})
        elif step == "take":
            taken = commits.take(Nanos(now), at_once=bool(detail))
            assert not (taken and sent is not None)
            assert all(offset >= marks.get(place, 0) for place, offset in taken.items())
            if detail and sent is None:
                assert taken == wanted
            if taken:
                sent = dict(taken)
        elif step == "answer":
            if detail and sent is not None:
                marks.update(sent)
                wanted = {place: offset for place, offset in wanted.items() if sent.get(place) != offset}
            commits.answered(taken=bool(detail))
            sent = None
        else:
            assert isinstance(detail, Partition)
            commits.forget([detail])
            wanted.pop(detail, None)
            marks.pop(detail, None)
            if sent is not None:
                sent.pop(detail, None)
            highest[detail] = 0
        assert commits.on_its_way == (sent is not None)
        assert commits.waiting == bool(wanted)


def test_commits_are_made_no_more_often_than_asked_for_but_at_once_when_it_matters() -> None:
    commits = Commits(EVERY)
    commits.add({PLACES[0]: 1})
    assert commits.take(Nanos(100)) == {PLACES[0]: 1}
    commits.answered(taken=True)
    commits.add({PLACES[0]: 2})
    assert commits.take(Nanos(109)) == {}
    assert commits.take(Nanos(109), at_once=True) == {PLACES[0]: 2}
    commits.answered(taken=False)
    assert commits.take(Nanos(119)) == {PLACES[0]: 2}


@given(st.lists(st.integers(min_value=0, max_value=30), unique=True, min_size=1), st.randoms())
def test_the_next_owner_begins_at_the_first_record_that_is_not_done(offsets: list[int], chance: Random) -> None:
    progress = Progress()
    place = PLACES[0]
    assert progress.assign([place]) < progress.assign([place])
    assert progress.resume_at(place) is None
    offsets.sort()
    claims: dict[int, Claim] = {offset: progress.register(place, offset, Nanos(0)) for offset in offsets}
    assert progress.resume_at(place) == offsets[0]
    last = offsets[0]
    for offset in chance.sample(offsets, len(offsets)):
        progress.done(claims.pop(offset))
        mark = progress.resume_at(place)
        assert mark is not None
        assert last <= mark <= min(claims, default=offsets[-1] + 1)
        # Nothing that is done lies between the mark and the first record that is not.
        assert not [o for o in offsets if mark <= o < min(claims, default=offsets[-1] + 1)]
        last = mark
    assert last == offsets[-1] + 1
    # A marker of a transaction lies behind the last record.
    assert progress.resume_at(place, last + 1) == last + 1
    progress.revoke([place])
    assert progress.owned() == {}


def test_events_of_a_thread_come_in_order_and_the_mailbox_says_when_it_is_full() -> None:
    async def read() -> None:
        mail = Mailbox(asyncio.get_running_loop(), max_records=10, max_bytes=1_000)
        most = 0

        def write() -> None:
            nonlocal most
            for number in range(500):
                assert mail.wait_for_room(TIMEOUT)
                mail.put(AtEnd(PLACES[0], number, 1), records=3, size=number % 400)
                most = max(most, len(mail._events))

        writer = Thread(target=write)
        writer.start()
        events = [await asyncio.wait_for(mail.get(), TIMEOUT) for _ in range(500)]
        writer.join()
        assert [event.offset for event in events if isinstance(event, AtEnd)] == list(range(500))
        assert most <= 4
        assert mail.is_light()
        mail.put(events[0], records=1, size=1_000)
        assert mail.is_full()
        assert not mail.wait_for_room(0)

    asyncio.run(read())


def test_a_reader_that_is_cancelled_has_taken_nothing() -> None:
    async def read() -> None:
        mail = Mailbox(asyncio.get_running_loop(), max_records=10, max_bytes=10)
        waiting = asyncio.create_task(mail.get())
        await asyncio.sleep(0)
        mail.put(AtEnd(PLACES[0], 7, 1))
        waiting.cancel()
        assert await mail.get() == AtEnd(PLACES[0], 7, 1)

    asyncio.run(read())


def test_a_silence_that_is_over_is_remembered_until_it_is_forgiven() -> None:
    pulse = Pulse(Nanos(0))
    pulse.beat(Nanos(5))
    pulse.beat(Nanos(25))
    pulse.beat(Nanos(26))
    assert pulse.silence(Nanos(27)) == 20
    assert pulse.silence(Nanos(90)) == 64
    pulse.forgive()
    assert pulse.silence(Nanos(29)) == 3
