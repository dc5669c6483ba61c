"""The thread of a member of a group: every call on its consumer is made here.

The thread polls whatever happens. Who takes nothing finds partitions paused, never the member put out of the group.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from enum import Enum, auto
from threading import Event as Flag
from threading import Thread

from confluent_kafka import OFFSET_STORED, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from strandline.clock import AwakeClock, SystemClock
from strandline.errors import KafkaError, UnknownTopic
from strandline.kafka.events import AtEnd, Failed, Records, Taken
from strandline.kafka.librdkafka import AWAY, client, translated
from strandline.kafka.listener import explained
from strandline.kafka.mailbox import Mailbox
from strandline.kafka.ownership import Begin, Ownership, places
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.kafka.pulse import Pulse
from strandline.kafka.taking import take
from strandline.units import Nanos, nanos

POLL = 0.1
# Pausing throws away what librdkafka has read ahead, so a short wait for room comes first.
KEEP_ALIVE = 0.5
LOOK_EVERY = nanos(timedelta(seconds=1))
PROBE_WITHIN = 0.5
LEAVE_WITHIN = nanos(timedelta(seconds=3))

log = logging.getLogger(__name__)
clock, plain_clock = AwakeClock(), SystemClock()


class Probe(Enum):
    """What a broker says when it is asked for a topic."""

    SHOWN = auto()
    MISSING = auto()
    UNANSWERED = auto()


class Polling(Thread):
    """Takes records, pauses and resumes, looks for trouble."""

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[str],
        progress: Progress,
        mail: Mailbox,
        *,
        begin: Begin | None,
        poll_records: int,
        commit_every: timedelta,
        hand_over: timedelta,
        start_within: timedelta,
    ) -> None:
        super().__init__(name="strandline-group", daemon=True)
        self.orders: deque[tuple[bool, Mapping[Partition, int]]] = deque()
        """Filled by any thread: whether to pause, and which partitions of which generation."""
        self.stopping = Flag()
        self.pulse = Pulse(clock.monotonic())
        self.ends: Mapping[Partition, int] = {}
        self._topics = list(topics)
        self._progress = progress
        self._mail = mail
        self._poll_records = poll_records
        self._start_within = nanos(start_within)
        self._settings = settings
        self._address = str(settings.get("bootstrap.servers"))
        callbacks = {"error_cb": self._complained, "on_commit": self._answered}
        self._consumer = client(Consumer, {**settings, **callbacks})
        self.ownership = Ownership(
            self._consumer, progress, mail, self.pulse, self.stopping,
            begin=begin, commit_every=commit_every, hand_over=hand_over,
        )  # fmt: skip
        # With the generation, as a partition that comes back comes unpaused.
        self._held: set[tuple[Partition, int]] = set()
        self._paused: set[tuple[Partition, int]] = set()
        self._following: dict[tuple[Partition, int], int] = {}
        """The offsets behind the last that were taken."""
        self._choked = False
        self._looked = Nanos(0)
        self._has_been_in = False
        self._doubts: dict[str, tuple[Nanos, KafkaError]] = {}
        self._away_since: Nanos | None = None

    def run(self) -> None:
        """Poll until it is time to stop, then leave the group."""
        mine = self.ownership
        try:
            self._consumer.subscribe(self._topics, on_assign=mine.assign, on_revoke=mine.revoke, on_lost=mine.lose)
            while not self.stopping.is_set():
                now = clock.monotonic()
                self.pulse.beat(now)
                self._look(now)
                mine.commit()
                self._obey()
                self._take()
        except Exception as error:  # noqa: BLE001  (whatever ends the thread is told to those who wait for it)
            self._mail.put(Failed(error))
        try:
            mine.leave(Nanos(clock.monotonic() + LEAVE_WITHIN))
        except Exception as error:  # noqa: BLE001  (what is wrong with the callbacks of others is told above)
            log.warning("left the group without a last commit: %s", error)
        finally:
            self._consumer.close()

    def _obey(self) -> None:
        owned = self.ownership.owned.items()
        while self.orders:
            pause, wanted = self.orders.popleft()
            self._held = self._held | wanted.items() if pause else self._held - wanted.items()
        self._held &= owned
        self._paused &= owned
        for place in self._following.keys() - owned:
            del self._following[place]
        self._choked = not (self._mail.is_light() if self._choked else self._mail.wait_for_room(KEEP_ALIVE))
        paused = set(owned) if self._choked else self._held
        if paused != self._paused:
            self._consumer.pause(places(dict(paused - self._paused)))
            self._consumer.resume(places(dict(self._paused - paused)))
            self._paused = set(paused)

    def _take(self) -> None:
        # Asked for many at once, librdkafka would wait for all of them. So one is waited for, and the rest is what is
        # there already.
        first = self._consumer.poll(POLL)
        if first is None:
            return
        owned = self.ownership.owned
        before = dict(owned)
        messages = [first, *self._consumer.consume(self._poll_records - 1, 0)] if self._poll_records > 1 else [first]
        again = {p for p, generation in before.items() if owned.get(p, generation) != generation}
        if again:
            # Revoked and ours again within the call: which of its messages came before is not known. None is used.
            messages = [m for m in messages if (m.topic(), m.partition()) not in again]
            marks = places(dict.fromkeys(again, OFFSET_STORED))
            self._consumer.incremental_unassign(marks)
            self._consumer.incremental_assign(marks)
        self._hand(messages)

    def _hand(self, messages: Sequence[Message]) -> None:
        now, owned, at = plain_clock.monotonic(), self.ownership.owned, 0
        while at < len(messages):
            records, size, at = take(messages, at, owned, self._progress, now)
            if records:
                self._tell_deleted(records)
                self._mail.put(Records(records), len(records), size)
            if at < len(messages) and (error := (message := messages[at]).error()) is not None:
                place = Partition(message.topic() or "", message.partition() or 0)
                self._judge(error, place, message.offset() or 0)
                at += 1

    def _tell_deleted(self, records: Sequence[Taken]) -> None:
        """Say which records were gone before they could be read."""
        following = self._following
        for record in records:
            place, offset = (record.partition, record.generation), record.offset
            expected = following.get(place, offset)
            following[place] = offset + 1
            # Markers of transactions leave gaps too, and are no loss.
            if expected < offset:
                low, _ = self._consumer.get_watermark_offsets(TopicPartition(*record.partition), cached=True)
                if expected < low <= offset:
                    log.warning("%s: Kafka has deleted %d to %d before they were read", place[0], expected, low - 1)

    def _judge(self, error: Code, place: Partition, offset: int) -> None:
        code = error.code()
        if code == Code._PARTITION_EOF:
            generation = self.ownership.owned.get(place)
            if generation is not None:
                self.ownership.reached[place] = offset
                self._mail.put(AtEnd(place, offset, generation))
        elif code == Code.UNKNOWN_TOPIC_OR_PART:
            until = Nanos(clock.monotonic() + self._start_within)
            self._doubts.setdefault(place.topic, (until, UnknownTopic(place.topic, self._address)))
        elif code == Code._MAX_POLL_EXCEEDED:
            log.warning("the group has waited too long for this member, and gives its partitions to others")
        elif code not in AWAY and not error.retriable():
            raise translated(error, place if place.topic else ", ".join(self._topics))

    def _answered(self, error: Code | None, partitions: list[TopicPartition]) -> None:
        self.ownership.answered(error, partitions)

    def _complained(self, error: Code) -> None:
        """What librdkafka has to say of no record in particular."""
        now = clock.monotonic()
        if error.fatal():
            raise translated(error, self._address)
        if error.code() in {Code._AUTHENTICATION, Code._SSL}:
            # A member that was let in before is perhaps only early: a broker that starts learns of its users later.
            patience = self._start_within if self._has_been_in else 0
            self._doubts.setdefault(self._topics[0], (Nanos(now + patience), translated(error, self._address)))
        elif error.code() == Code._ALL_BROKERS_DOWN and self._away_since is None:
            self._away_since = now
            away = translated(error, self._address)
            reason = away if self._has_been_in else explained(away, self._settings)
            if reason is not away:
                self._doubts.setdefault(self._topics[0], (now, reason))
            else:
                log.warning("Kafka at %s is away; waiting for it", self._address)

    def _look(self, now: Nanos) -> None:
        """About once a second: the ends of partitions, and whether trouble has passed or will not."""
        if now - self._looked < LOOK_EVERY:
            return
        self._looked = now
        ends = {}
        for partition in self.ownership.owned:
            self._has_been_in = True
            end = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)[1]
            if end >= 0:
                ends[partition] = end
        self.ends = ends
        if self._away_since is not None and self._probe(self._topics[0]) is Probe.SHOWN:
            log.info("Kafka is back after %.1f s", (now - self._away_since) / 1e9)
            self._away_since = None
        for topic, (until, error) in list(self._doubts.items()):
            if now > until:
                probe = self._probe(topic)
                if probe is Probe.SHOWN:
                    del self._doubts[topic]
                # Where nobody answers, that says something of a password and nothing of a topic.
                elif probe is Probe.MISSING or not isinstance(error, UnknownTopic):
                    raise error

    def _probe(self, topic: str) -> Probe:
        try:
            found = self._consumer.list_topics(topic, timeout=PROBE_WITHIN).topics.get(topic)
        except KafkaException:
            return Probe.UNANSWERED
        return Probe.SHOWN if found is not None and found.error is None else Probe.MISSING
