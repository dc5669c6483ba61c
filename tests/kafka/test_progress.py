"""Commits: the offset to read next, only for what is ours, never past what is unfinished."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from strandline.errors import NotOurs
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from tests.support import TIMEOUT, write_records
from tests.topics import create_topics

if TYPE_CHECKING:
    from strandline.kafka.claim import Claim

ONE, TWO = Partition("tide", 0), Partition("tide", 1)
NOW = Nanos(0)


def test_the_commit_is_one_past_the_last_offset_that_is_done() -> None:
    progress = Progress()
    progress.assign([ONE, TWO])
    claims = [progress.register(ONE, offset, NOW) for offset in (7, 9, 12)]
    progress.done(claims[1])
    assert progress.take_commits() == {}
    progress.done(claims[0])
    assert progress.take_commits() == {ONE: 10}
    assert progress.take_commits() == {}
    assert (progress.in_flight(ONE), progress.beyond()) == (1, 1)
    oldest = progress.oldest(ONE, Nanos(5))
    assert oldest is not None
    assert (oldest.position, oldest.age) == (12, 5)
    progress.done(claims[2])
    assert progress.take_commits() == {ONE: 13}


def test_what_was_revoked_is_neither_committed_nor_taken() -> None:
    progress = Progress()
    progress.assign([ONE, TWO])
    one, two = progress.register(ONE, 1, NOW), progress.register(TWO, 1, NOW)
    progress.done(one)
    progress.revoke([ONE])
    progress.done(two)
    assert progress.take_commits() == {TWO: 2}
    with pytest.raises(NotOurs, match="partition 0 of tide is not assigned to us"):
        progress.register(ONE, 2, NOW)
    assert (progress.in_flight(ONE), progress.oldest(ONE, NOW)) == (0, None)


def test_a_record_of_an_earlier_assignment_changes_nothing() -> None:
    progress = Progress()
    progress.assign([ONE])
    stale = progress.register(ONE, 50, NOW)
    progress.revoke([ONE])
    progress.done(stale)
    progress.assign([ONE])
    fresh = progress.register(ONE, 40, NOW)
    progress.done(stale)
    assert progress.take_commits() == {}
    progress.done(fresh)
    assert progress.take_commits() == {ONE: 41}


def test_a_partition_that_moves_to_another_member_is_taken_up_at_the_frontier(kafka: KafkaCluster) -> None:
    topic = "moving"
    create_topics(kafka.settings(), NewTopic(topic, 2))
    for number in (0, 1):
        write_records(kafka.address, topic, [str(n).encode() for n in range(100)], partition=number)
    with Member(kafka.address, topic) as first:
        first.poll_until(lambda: len(first.held) == 200)
        # Every third record stays unfinished, so each partition's frontier stands before offset 2.
        first.finish(lambda offset: offset % 3 != 2)
        with Member(kafka.address, topic) as second:
            second.poll_until(lambda: bool(second.held), beside=first)
            partition, offset = min(second.held)
            assert (partition.number in {0, 1}, offset) == (True, 2)
            # What the first still holds of the partition that it lost is void now.
            first.finish(lambda _: True)
            first.commit()
            second.finish(lambda offset: offset < 10)
            second.commit()
            lost = TopicPartition(topic, partition.number)
            assert [p.offset for p in second.consumer.committed([lost], timeout=TIMEOUT)] == [10]


class Member:
    """One member of a group that commits what its progress says."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.progress = Progress()
        self.held: dict[tuple[Partition, int], Claim] = {}
        self.consumer = Consumer({
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "cooperative-sticky",
        })  # fmt: skip
        self.consumer.subscribe([topic], on_assign=self._assign, on_revoke=self._revoke)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.progress.assign(Partition(p.topic, p.partition) for p in partitions)
        consumer.incremental_assign(partitions)

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.commit()
        self.progress.revoke([Partition(p.topic, p.partition) for p in partitions])
        consumer.incremental_unassign(partitions)

    def poll_until(self, condition: Callable[[], bool], beside: "Member | None" = None) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline
            for member in (self, beside) if beside else (self,):
                member.poll()

    def poll(self) -> None:
        for message in self.consumer.consume(500, timeout=0.1):
            assert message.error() is None
            partition = Partition(str(message.topic()), int(message.partition() or 0))
            offset = int(message.offset() or 0)
            self.held[partition, offset] = self.progress.register(partition, offset, NOW)

    def finish(self, chosen: Callable[[int], bool]) -> None:
        for key in [key for key in self.held if chosen(key[1])]:
            self.progress.done(self.held.pop(key))

    def commit(self) -> None:
        commits = self.progress.take_commits()
        if commits:
            offsets = [TopicPartition(p.topic, p.number, offset) for p, offset in commits.items()]
            self.consumer.commit(offsets=offsets, asynchronous=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close()
