"""Records to Kafka, from an event loop: a bound in bytes, and word of each record once Kafka has it or never will.

A record waits as long as Kafka is away, and as long as there is room. When there is none, records are refused until
half of the buffer is free again, so that what is lost is lost in one piece, and is told at its start and at its end.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from threading import Event, Thread
from typing import Any

from confluent_kafka import KafkaError as Reason
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import BrokerRefused, BrokerUnreachable, OptionError
from strandline.kafka.librdkafka import SAFE, translated
from strandline.kafka.listener import explained

POLL_S = 0.2
GATHER_S = 0.02
"""How long a record that nobody waits for is kept, to be sent with others: a broker has work by the batch."""
TOPIC_TIMEOUT_S = 5.0
LEADER_RETRY_S = 0.05
OURS: dict[str, str | int | float | bool] = {
    **SAFE,
    # Bounded by the buffer, not by time: a record is not given up while there is room for it.
    "message.timeout.ms": 0,
    "queue.buffering.max.messages": 0,
}

log = logging.getLogger(__name__)

Done = Callable[[bool], None]


class Publisher:
    """Writes records to a topic. All methods but `create_topic` belong to the loop."""

    def __init__(self, settings: Mapping[str, str], topic: str, *, buffer_bytes: int, linger_ms: float = 0) -> None:
        self.topic = topic
        self.buffer_bytes = buffer_bytes
        self.waiting_bytes = 0
        """Of the records that Kafka has not acknowledged yet."""
        self.published = self.failed = self.dropped = self.dropped_bytes = 0
        self.is_losing = False
        self.when_room: Callable[[], None] = lambda: None
        """Called when a buffer that was more than half full no longer is."""
        self._settings = dict(settings)
        self._was_crowded = False
        self._lost_since = 0.0
        self._lost_before = (0, 0)
        self._complaints: set[int] = set()
        # Room for what is counted here, and for what librdkafka counts besides.
        kbytes = max(1, 2 * buffer_bytes >> 10)
        # What librdkafka logs of a broker that is away comes several times a second; `_complained` tells it once.
        defaults = {"linger.ms": linger_ms, "client.id": "strandline-capture", "log_level": 2}
        try:
            ours: dict[str, Any] = {**defaults, **settings, **OURS, "queue.buffering.max.kbytes": kbytes}
            ours["error_cb"] = self._complained
            self._producer = Producer(ours, logger=log)
        except KafkaException as error:
            text = error.args[0].str()
            for value in settings.values():
                text = text.replace(value, "***") if value else text
            raise OptionError(f"a setting for Kafka: {text}") from None
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[str, bytes, Done]] = []
        self._is_urgent = False
        self._on_their_way = 0
        self._outcomes: deque[tuple[Done, int, Reason | None]] = deque()
        self._is_woken = False
        self._is_ticking = False
        self._is_open = True
        self._is_waited_for = Event()
        # Only for word that is waited for: a second thread costs the loop more than asking now and then.
        self._thread = Thread(target=self._serve, name="strandline-publisher", daemon=True)
        self._thread.start()

    @property
    def is_crowded(self) -> bool:
        """Whether the buffer is more than half full."""
        return self.waiting_bytes * 2 > self.buffer_bytes

    def create_topic(self, partitions: int) -> None:
        """Make the topic unless it is there; blocks."""
        address = self._settings.get("bootstrap.servers", "")
        admin = AdminClient({**self._settings, "log_level": 0})
        try:
            known = admin.list_topics(timeout=TOPIC_TIMEOUT_S).topics
        except KafkaException as error:
            raise explained(translated(error.args[0], address), self._settings) from None
        if self.topic in known:
            return
        try:
            fresh = NewTopic(self.topic, num_partitions=partitions, replication_factor=-1)
            admin.create_topics([fresh], request_timeout=TOPIC_TIMEOUT_S)[self.topic].result(TOPIC_TIMEOUT_S * 2)
            log.info("topic %s was made", self.topic)
        except KafkaException as error:
            if error.args[0].code() != Reason.TOPIC_ALREADY_EXISTS:
                raise BrokerRefused(error.args[0].str(), f"the making of topic '{self.topic}'") from None
        except TimeoutError:
            raise BrokerUnreachable(address, f"no answer to the making of topic '{self.topic}'") from None

    def publish(self, key: str, record: bytes, done: Done, *, is_urgent: bool = False) -> bool:
        """Take a record; `done` tells later whether Kafka has it. False where there is no room for it.

        One that is urgent is sent, with all before it, as soon as Kafka has said a word about those that are on their
        way: many that are urgent go together so, and one alone goes at once.
        """
        size = len(record) + len(key)
        if self.is_losing or self.waiting_bytes + size > self.buffer_bytes:
            self.drop(size)
            return False
        self.waiting_bytes += size
        self._was_crowded = self._was_crowded or self.is_crowded
        self._gathered.append((key, record, done))
        self._is_urgent = self._is_urgent or is_urgent
        if is_urgent and not self._on_their_way:
            self._send()
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(GATHER_S, self._tick)
        return True

    def listen(self, *, is_waited_for: bool) -> None:
        """Whether somebody waits for word from Kafka; it comes at once then, and else with the next batch."""
        self._is_waited_for.set() if is_waited_for else self._is_waited_for.clear()

    async def close(self, within: float) -> int:
        """Wait until Kafka has everything, for so many seconds; how many records it does not have."""
        deadline = self._loop.time() + within
        self._send()
        while len(self._producer) and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        self._is_open = False
        left = self.failed
        self._producer.purge()
        await asyncio.to_thread(self._thread.join, POLL_S * 5)
        await asyncio.to_thread(self._producer.flush, POLL_S)
        self._settle()
        if self.is_losing:
            self._end_loss()
        return self.failed - left

    def _send(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._is_urgent = False
        self._on_their_way += len(gathered)
        for key, record, done in gathered:
            size = len(record) + len(key)
            try:
                self._producer.produce(self.topic, record, key, on_delivery=partial(self._delivered, done, size))
            except (BufferError, KafkaException) as error:
                reason = error.args[0] if isinstance(error, KafkaException) else Reason(Reason._QUEUE_FULL)
                self._delivered(done, size, reason, None)

    def _tick(self) -> None:
        """While any record is on its way."""
        self._send()
        self._is_woken = True
        self._producer.poll(0)
        self._settle()
        self._is_ticking = self.waiting_bytes > 0
        if self._is_ticking:
            self._loop.call_later(GATHER_S, self._tick)

    def _serve(self) -> None:
        while self._is_open:
            # Also while nothing is on its way: what librdkafka complains of would gather.
            self._producer.poll(POLL_S if self._is_waited_for.wait(POLL_S) else 0)

    def _complained(self, error: Reason) -> None:
        """On either thread: Kafka is in trouble. Each kind of it is told once, until records pass again."""
        if error.code() not in self._complaints:
            self._complaints.add(error.code())
            log.warning("Kafka: %s", error.str())

    def _delivered(self, done: Done, size: int, error: Reason | None, _message: Message | None) -> None:
        """On either thread."""
        self._outcomes.append((done, size, error))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        # First, so that nothing that comes from now on is forgotten.
        self._is_woken = False
        outcomes = self._outcomes
        while outcomes:
            done, size, error = outcomes.popleft()
            self._on_their_way -= 1
            self.waiting_bytes -= size
            if error is None:
                self.published += 1
                if self._complaints:
                    self._complaints.clear()
                    log.info("Kafka takes records again")
            else:
                self.failed += 1
                if self.failed == 1 or not self.failed % 1000:
                    log.error("Kafka does not take a record (%d so far): %s", self.failed, error.str())
            done(error is None)
        if self._is_urgent and not self._on_their_way:
            self._send()
        if self._was_crowded and not self.is_crowded:
            self._was_crowded = False
            if self.is_losing:
                self._end_loss()
            self.when_room()

    def drop(self, size: int) -> None:
        """A record of that size is not to be had: for want of room, or since one before it was not."""
        if not self.is_losing:
            self.is_losing = self._was_crowded = True
            self._lost_since = time.monotonic()
            self._lost_before = (self.dropped, self.dropped_bytes)
            log.error(
                "Kafka does not keep up: %d bytes wait for it, and records are dropped until half of them are gone",
                self.waiting_bytes,
            )
        self.dropped += 1
        self.dropped_bytes += size

    def _end_loss(self) -> None:
        self.is_losing = False
        records, size = self.dropped - self._lost_before[0], self.dropped_bytes - self._lost_before[1]
        seconds = time.monotonic() - self._lost_since
        log.error("records are kept again: %d were dropped, %d bytes, in %.1f s", records, size, seconds)
