"""Faults of a membership that no broker makes on demand, from a consumer that is none."""

import asyncio
from concurrent.futures import Future
from datetime import timedelta
from threading import Event as Flag
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin._metadata import ClusterMetadata

from strandline.clock import ManualClock
from strandline.errors import UnknownTopic
from strandline.kafka.events import Assigned, Records
from strandline.kafka.mailbox import Mailbox
from strandline.kafka.ownership import Ownership, Proof
from strandline.kafka.partition import Partition
from strandline.kafka.polling import Polling
from strandline.kafka.progress import Progress
from strandline.kafka.pulse import Pulse
from strandline.units import Nanos

ONE = Partition("t", 1)
TWO = Partition("t", 2)


class Scripted:
    """Does as a consumer that a test has told what happens."""

    def __init__(self) -> None:
        self.member = "a"
        self.commits: list[list[tuple[int, int]]] = []
        self.assigned: list[list[int]] = []
        self.batch: Any = list
        self.landed: Any = list
        self.is_away = True

    def committed(self, offsets: list[TopicPartition], *, timeout: float) -> list[TopicPartition]:
        return [TopicPartition(place.topic, place.partition, self.landed()) for place in offsets]

    def memberid(self) -> str:
        return self.member

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self.commits.append([(place.partition, place.offset) for place in offsets])
        return offsets

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.assigned.append([place.partition for place in places])

    def incremental_unassign(self, places: list[TopicPartition]) -> None:
        self.assigned.append([-place.partition for place in places])

    def resume(self, places: list[TopicPartition]) -> None:
        """Nothing is paused here."""

    def list_topics(self, _topic: str, *, timeout: float) -> ClusterMetadata:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return ClusterMetadata()

    def poll(self, _: float) -> Message | None:
        return message(TWO, 0)

    def consume(self, *_: object) -> list[Message]:
        return cast("list[Message]", self.batch())


def message(partition: Partition, offset: int) -> Message:
    return Message(partition.topic, partition.number, offset, b"", b"", timestamp=(1, 0))


def place(partition: Partition) -> list[TopicPartition]:
    return [TopicPartition(*partition)]


class Scene:
    """An ownership of a scripted consumer, at a time that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = ManualClock()
        monkeypatch.setattr("strandline.kafka.ownership.clock", self.clock)
        self.consumer = Scripted()
        self.real = cast("Consumer", self.consumer)
        self.progress = Progress()
        self.mail = Mailbox(loop, max_records=100, max_bytes=100)
        self.pulse = Pulse(Nanos(0))
        self.mine = Ownership(
            self.real,
            self.progress,
            self.mail,
            self.pulse,
            Flag(),
            begin=None,
            commit_every=timedelta(0),
            hand_over=timedelta(0),
        )

    def ask(self, believed: dict[Partition, int]) -> "Future[bool]":
        proof = Proof(Future(), Nanos(self.clock.monotonic() + 5_000_000_000), believed)
        self.mine.asked.append(proof)
        self.mine.commit()
        return proof.answer

    def take(self, partition: Partition, offset: int) -> None:
        self.progress.done(self.progress.register(partition, offset, Nanos(0)))


@pytest.fixture
def loop() -> Any:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop) -> Scene:
    scene = Scene(monkeypatch, loop)
    scene.mine.assign(scene.real, place(ONE))
    scene.take(ONE, 4)
    return scene


def test_nothing_is_committed_in_the_name_of_a_membership_that_has_ended(scene: Scene) -> None:
    scene.consumer.member = ""
    assert scene.ask({ONE: 1}).result(0) is False
    scene.mine.revoke(scene.real, place(ONE))
    assert scene.consumer.commits == []


def test_a_membership_that_ends_while_its_commit_is_answered_is_not_proved(scene: Scene) -> None:
    answer = scene.ask({ONE: 1})
    assert scene.consumer.commits == [[(1, 5)]]
    scene.consumer.member = "b"
    scene.mine.answered(None, [])
    assert answer.result(0) is False


def test_an_answer_that_took_long_proves_nothing_and_is_asked_for_again(scene: Scene) -> None:
    answer = scene.ask({ONE: 1})
    scene.clock.advance(Nanos(2_000_000_000))
    scene.mine.answered(None, [])
    assert not answer.done()
    scene.mine.commit()
    assert scene.consumer.commits == [[(1, 5)], [(1, 5)]]
    scene.mine.answered(None, [])
    assert answer.result(0) is True
    assert scene.pulse.silence(scene.clock.monotonic()) == 0


def test_a_group_in_the_middle_of_a_rebalance_is_asked_again(scene: Scene) -> None:
    answer = scene.ask({ONE: 1})
    scene.mine.answered(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), [])
    assert not answer.done()
    scene.mine.commit()
    scene.mine.answered(None, [])
    assert answer.result(0) is True


def test_what_was_lost_and_not_heard_of_yet_is_not_proved(scene: Scene) -> None:
    scene.mine.lose(scene.real, place(ONE))
    assert scene.ask({ONE: 1}).result(0) is False
    assert scene.ask({}).result(0) is True
    scene.mine.assign(scene.real, place(ONE))
    assert scene.ask({ONE: 1}).result(0) is False
    assert scene.ask({ONE: 2}).result(0) is True
    assert scene.consumer.commits == []


@pytest.mark.parametrize("lands", [True, False])
def test_the_last_commit_waits_for_one_on_its_way_and_not_for_ever(scene: Scene, *, lands: bool) -> None:
    scene.mine.commit()
    scene.take(ONE, 5)
    seen: list[int] = []

    def landed() -> int:
        assert scene.consumer.commits == [[(1, 5)]], "the last one is not made yet"
        scene.clock.advance(Nanos(300_000_000))
        seen.append(5 if lands and len(seen) == 1 else 0)
        return seen[-1]

    scene.consumer.landed = landed
    scene.mine.revoke(scene.real, place(ONE))
    assert scene.consumer.commits == [[(1, 5)], [(1, 6)]]
    assert seen == ([0, 5] if lands else [0, 0, 0, 0])


def test_a_partition_that_is_wanted_back_while_the_member_leaves_is_committed_as_any(scene: Scene) -> None:
    scene.mine.commit()
    scene.take(ONE, 5)
    scene.consumer.landed = lambda: 5

    def poll(_: float) -> None:
        scene.mine.revoke(scene.real, place(ONE))

    scene.consumer.poll = poll  # type: ignore[method-assign]
    scene.mine.leave(Nanos(1_000_000_000))
    assert scene.consumer.commits == [[(1, 5)], [(1, 6)]]
    # The consumer gives back what is left when it is closed; that was committed, or cannot be.
    scene.mine.assign(scene.real, place(TWO))
    scene.take(TWO, 0)
    scene.mine.revoke(scene.real, place(TWO))
    assert len(scene.consumer.commits) == 2


def test_a_topic_is_missed_only_when_a_broker_says_so(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> None:
    clock, consumer = ManualClock(), Scripted()
    monkeypatch.setattr("strandline.kafka.polling.clock", clock)
    monkeypatch.setattr("strandline.kafka.polling.client", lambda *_: consumer)
    mail = Mailbox(loop, max_records=100, max_bytes=100)
    none, soon = timedelta(0), timedelta(seconds=1)
    polling = Polling(
        {}, ["t"], Progress(), mail,
        begin=None, poll_records=10, commit_every=none, hand_over=none, start_within=soon,
    )  # fmt: skip
    polling._judge(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), ONE, 0)
    for _ in range(3):
        clock.advance(Nanos(2_000_000_000))
        polling._look(clock.monotonic())
    consumer.is_away = False
    clock.advance(Nanos(2_000_000_000))
    with pytest.raises(UnknownTopic):
        polling._look(clock.monotonic())


def test_of_a_partition_that_comes_back_within_one_call_no_message_is_used_and_it_begins_again(
    monkeypatch: pytest.MonkeyPatch, loop: asyncio.AbstractEventLoop
) -> None:
    consumer = Scripted()
    monkeypatch.setattr("strandline.kafka.polling.client", lambda *_: consumer)
    mail = Mailbox(loop, max_records=100, max_bytes=100)
    none = timedelta(0)
    polling = Polling(
        {}, ["t"], Progress(), mail,
        begin=None, poll_records=10, commit_every=none, hand_over=none, start_within=none,
    )  # fmt: skip
    real, mine = cast("Consumer", consumer), polling.ownership
    mine.assign(real, [*place(ONE), *place(TWO)])

    def batch() -> list[Message]:
        mine.revoke(real, place(ONE))
        mine.assign(real, place(ONE))
        return [message(ONE, 7), message(TWO, 1), message(ONE, 3)]

    consumer.batch = batch
    polling._take()
    assert consumer.assigned == [[1, 2], [-1], [1], [-1], [1]]

    async def records() -> list[tuple[int, int]]:
        while not isinstance(event := await mail.get(), Records):
            assert not isinstance(event, Assigned) or event.generation <= 2
        return [(record.partition.number, record.offset) for record in event.records]

    assert loop.run_until_complete(records()) == [(2, 0), (2, 1)]
