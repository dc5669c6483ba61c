"""What a member of a group owns and commits: rebalances, commits and proofs, all in the thread that polls.

The rules that this file keeps:

1. Only what is done is committed, never beyond unfinished work; one commit is on its way at a time.
2. Revoked partitions are handed over: drained or the time is out, then committed, then dropped.
3. Of lost partitions nothing is committed.
4. Nothing is committed in the name of a membership that has ended.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from threading import Event as Flag
from typing import NamedTuple

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as Code

from strandline.clock import AwakeClock, SystemClock
from strandline.kafka.commits import Commits
from strandline.kafka.events import Assigned, Lost, Revoked
from strandline.kafka.mailbox import Mailbox
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.kafka.pulse import Pulse
from strandline.units import Nanos, nanos

Begin = Callable[[list[Partition]], Mapping[Partition, int]]

STEP = 0.1
ASK_EVERY = 0.02
LANDS_WITHIN = nanos(timedelta(seconds=1))
"""How long a commit that is on its way is waited for when its partitions are handed over."""
# An answer that took longer was perhaps waiting for us to wake up, and tells nothing of now.
FRESH = nanos(timedelta(seconds=1))
NOT_A_MEMBER = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.FENCED_INSTANCE_ID})

log = logging.getLogger(__name__)
# The group's time goes on while this machine is suspended.
clock, plain_clock = AwakeClock(), SystemClock()


class Proof(NamedTuple):
    """Somebody waits to hear whether we still own our partitions."""

    answer: Future[bool]
    until: Nanos
    believed: Mapping[Partition, int]
    """What the asker takes for ours, with the generations. It may not have heard yet of what was lost."""


class Ownership:
    """The rebalance callbacks of a consumer, and its commits."""

    def __init__(
        self,
        consumer: Consumer,
        progress: Progress,
        mail: Mailbox,
        pulse: Pulse,
        stopping: Flag,
        *,
        begin: Begin | None,
        commit_every: timedelta,
        hand_over: timedelta,
    ) -> None:
        self.owned: dict[Partition, int] = {}
        """Our partitions with their generations."""
        self.reached: dict[Partition, int] = {}
        """The ends that were reached."""
        self.asked: deque[Proof] = deque()
        """Filled by any thread."""
        self._consumer = consumer
        self._progress = progress
        self._mail = mail
        self._pulse = pulse
        self._stopping = stopping
        self._begin = begin
        self._hand_over = nanos(hand_over)
        self._had: set[Partition] = set()
        self.member = ""
        """What the group calls us."""
        self._commits = Commits(nanos(commit_every))
        self._sent_at = Nanos(0)
        self._proving: list[Proof] = []
        self._has_left = False

    def assign(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        """Partitions have become ours."""
        partitions = _names(found)
        new = [partition for partition in partitions if partition not in self._had]
        starts = self._begin(new) if self._begin is not None and new else {}
        self._had.update(new)
        self.member = consumer.memberid()
        generation = self._progress.assign(partitions)
        self.owned.update(dict.fromkeys(partitions, generation))
        consumer.incremental_assign(places({p: starts.get(p, OFFSET_STORED) for p in partitions}))
        # librdkafka remembers that a partition was paused, even after it has been another member's.
        consumer.resume(found)
        if partitions:
            self._mail.put(Assigned(partitions, generation, plain_clock.monotonic()))

    def revoke(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        """Partitions are wanted back, and are ours until this returns."""
        partitions = _names(found)
        if partitions and not self._has_left:
            self._wait_until_drained(partitions)
            self._commit_last(partitions)
        self._drop(partitions)
        consumer.incremental_unassign(found)

    def lose(self, consumer: Consumer, found: list[TopicPartition]) -> None:
        """Partitions are another member's already."""
        partitions = _names(found)
        self._drop(partitions)
        if partitions:
            self._mail.put(Lost(partitions))
        consumer.incremental_unassign(found)

    def _drop(self, partitions: Collection[Partition]) -> None:
        self._progress.revoke(partitions)
        self._commits.forget(partitions)
        for partition in partitions:
            self.owned.pop(partition, None)
            self.reached.pop(partition, None)

    def _wait_until_drained(self, partitions: list[Partition]) -> None:
        revoked = Revoked(partitions)
        self._mail.put(revoked)
        now = clock.monotonic()
        until = now + self._hand_over
        while not (self._stopping.is_set() or revoked.released.wait(min(STEP, max(0, until - now) / 1e9))):
            now = clock.monotonic()
            self._pulse.beat(now)
            if now >= until:
                log.warning("%s: handed over with work in flight, which will repeat", ", ".join(map(str, partitions)))
                return

    def _commit_last(self, partitions: Collection[Partition]) -> None:
        marks = self._marks(partitions)
        if not marks:
            return
        if not self._is_member():
            log.warning("%s: no longer ours; what was not committed repeats", ", ".join(map(str, partitions)))
            return
        self._await_commit(partitions)
        try:
            answers = self._consumer.commit(offsets=places(marks), asynchronous=False)
            problem = next((p.error for p in answers if p.error is not None), None)
        except KafkaException as error:
            problem = error.args[0]
        if problem is not None:
            log.warning("the last commit of %s failed: %s", ", ".join(map(str, partitions)), problem.name())

    def _await_commit(self, partitions: Collection[Partition]) -> None:
        """Wait for a commit that is on its way, as a repeat of it could undo the last one.

        Its answer comes with a poll, and this is called from one: so the group is asked what it has.
        """
        sent = self._commits.sent(partitions)
        until = clock.monotonic() + LANDS_WITHIN
        while sent and (now := clock.monotonic()) < until:
            self._pulse.beat(now)
            try:
                found = self._consumer.committed(places(sent), timeout=(until - now) / 1e9)
            except KafkaException as error:
                log.debug("what is committed cannot be told: %s", error)
                found = []
            landed = {
                Partition(place.topic, place.partition)
                for place in found
                if place.error is None and place.offset >= sent[Partition(place.topic, place.partition)]
            }
            sent = {partition: offset for partition, offset in sent.items() if partition not in landed}
            if sent and self._stopping.wait(ASK_EVERY):
                return
        if sent:
            log.warning("%s: a commit is not answered; the last one is made all the same", ", ".join(map(str, sent)))

    def commit(self, *, at_once: bool = False) -> None:
        """Send what is to be committed, if it is time; prove what was asked for."""
        now = clock.monotonic()
        self._commits.add(self._progress.take_commits())
        if self._commits.on_its_way:
            return
        while self.asked:
            proof = self.asked.popleft()
            if proof.answer.set_running_or_notify_cancel():
                self._proving.append(proof)
        self._proving = [proof for proof in self._proving if now < proof.until]
        if self._proving:
            self._commits.add(self._marks(self.owned))
        marks = self._commits.take(now, at_once=at_once or bool(self._proving))
        if not marks:
            if not self._commits.waiting:
                # Nothing has come of any partition: there is nothing that we could wrongly work on.
                self._settle(True)
            return
        if not self._is_member():
            self._commits.answered(taken=False)
            self._settle(False)
            return
        self._sent_at = now
        try:
            self._consumer.commit(offsets=places(marks), asynchronous=True)
        except KafkaException as error:
            self.answered(error.args[0], [])

    def answered(self, error: Code | None, partitions: list[TopicPartition]) -> None:
        """The answer to the commit that was on its way."""
        now = clock.monotonic()
        self._pulse.beat(now)
        problem = error or next((p.error for p in partitions if p.error is not None), None)
        self._commits.answered(taken=problem is None)
        if problem is not None:
            log.debug("a commit failed, and is made again: %s", problem.name())
            if problem.code() in NOT_A_MEMBER:
                self._settle(False)
        elif now - self._sent_at < FRESH:
            self._settle(self._is_member())

    def _is_member(self) -> bool:
        """Whether the membership that our partitions came with still stands, as far as librdkafka knows.

        A commit without a membership would be taken by a group that has become empty, and could set it back.
        """
        # Asked twice: after a freeze the first answer comes before librdkafka has looked at the clock.
        return all(self._consumer.memberid() == self.member for _ in range(2))

    def _settle(self, member: bool) -> None:
        answers = [member and proof.believed.items() <= self.owned.items() for proof in self._proving]
        if answers and all(answers):
            self._pulse.forgive()
        for proof, ours in zip(self._proving, answers, strict=True):
            proof.answer.set_result(ours)
        self._proving.clear()

    def leave(self, until: Nanos) -> None:
        """The last commit, as far as there is time for it. What is still polled is not taken."""
        try:
            self._leave(until)
        finally:
            self._has_left = True

    def _leave(self, until: Nanos) -> None:
        self._commits.add(self._marks(self.owned))
        while clock.monotonic() < until:
            self.commit(at_once=True)
            if not self._commits.waiting:
                return
            # Partitions may be wanted back meanwhile: they are committed as at any other time.
            self._consumer.poll(STEP)
        log.warning("left the group before its last commit was answered; what was done since the one before may repeat")

    def mark(self, partition: Partition) -> int | None:
        """Where the next owner of a partition is to begin, as far as it is known. From any thread."""
        return self._progress.resume_at(partition, self.reached.get(partition))

    def _marks(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        marks = ((partition, self.mark(partition)) for partition in partitions)
        return {partition: mark for partition, mark in marks if mark is not None}


def places(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    """Partitions and offsets as librdkafka takes them."""
    return [TopicPartition(*partition, offset) for partition, offset in offsets.items()]


def _names(found: Iterable[TopicPartition]) -> list[Partition]:
    return [Partition(place.topic, place.partition) for place in found]
