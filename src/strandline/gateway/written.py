"""What a trial of a gateway writes: numbered records, of which old ones are deleted, in a topic that is made anew."""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import GatewayRefused, UnknownTopic
from strandline.kafka.librdkafka import asking

CHANNELS = [f"verify.{name}" for name in "abcdef"]
END = "verify.end"
START_S = 30.0
FLUSH_S = 120.0
ADMIN_S = 5.0
# How long a broker waits for all others before it answers. Until then it reads nothing more of what we ask it.
SPREAD_S = 2.0
# What is said while a broker is away.
NOT_NOW = (KafkaException, TimeoutError)
TRY_EVERY_S = 0.1
DELETE_SHARE = 0.02
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Log:
    """One topic of the name, by partition: the channel of each record by its offset, and the first that is left."""

    channels: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    starts: dict[int, int] = field(default_factory=dict)

    def end(self, partition: int) -> int:
        return max(self.channels[partition], default=-1) + 1

    def begin(self, partition: int, offset: int) -> None:
        """What lies before an offset is gone, or may be."""
        self.starts[partition] = max(self.starts.get(partition, 0), offset)


class Writer:
    """Writes for as long as it is told to. What a broker does not take at once is tried again."""

    def __init__(self, kafka: Mapping[str, str], topic: str, *, rate: int, deletes: bool, seed: int) -> None:
        # Brokers that are away are no news here; what cannot be done is said in the end. And while the topic is made
        # anew nobody who only asks for it may have it made, with as many partitions as the broker likes.
        self._kafka: dict[str, Any] = {**kafka, "log_level": 0, "allow.auto.create.topics": False}
        self._topic = topic
        self._rate = rate
        self._deletes = deletes
        self._random = random.Random(seed)  # noqa: S311  (a trial, no secret)
        self._admin = AdminClient(self._kafka)
        self._producer = self._new_producer()
        self._failures: list[str] = []
        self._number = 0
        with asking(self._kafka["bootstrap.servers"], self._kafka):
            known = self._admin.list_topics(topic, timeout=START_S).topics[topic]
        if known.error is not None:
            raise UnknownTopic(topic, self._kafka["bootstrap.servers"])
        self.partitions = len(known.partitions)
        self._replicas = len(known.partitions[0].replicas)
        self.logs = [Log()]

    @property
    def written(self) -> int:
        """Records, over all logs."""
        return sum(len(offsets) for log in self.logs for offsets in log.channels.values())

    def _new_producer(self) -> Producer:
        # Each topic has one of its own: the numbers of an idempotent one belong to the topic that they began with.
        return Producer({**self._kafka, "linger.ms": 2, "enable.idempotence": True})

    async def write(self, seconds: float) -> None:
        """Write at the rate, and delete now and then."""
        loop = asyncio.get_running_loop()
        begin, before = loop.time(), self._number
        while (elapsed := loop.time() - begin) < seconds:
            while self._number - before < elapsed * self._rate:
                if not self._produce(self._random.choice(CHANNELS), self._random.randrange(self.partitions)):
                    break
            self._producer.poll(0)
            if self._deletes and self._random.random() < DELETE_SHARE:
                await asyncio.to_thread(self._delete)
            await asyncio.sleep(0.01)
        await self._flush()

    def _produce(self, key: str, partition: int) -> bool:
        """Hand a record over to be written; False while that cannot be, such as right after the topic was made anew."""
        its, generation = self.logs[-1], len(self.logs) - 1

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._failures.append(str(error))
            else:
                its.channels[message.partition()][message.offset()] = key

        value = msgspec.json.encode([generation, self._number])
        try:
            self._producer.produce(self._topic, value, key=key, partition=partition, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            log.debug("%s: %s", self._topic, error)
            return False
        self._number += 1
        return True

    async def _flush(self) -> None:
        left = await asyncio.to_thread(self._producer.flush, FLUSH_S)
        if left or self._failures:
            raise GatewayRefused(self._topic, f"Kafka did not take all records: {self._failures[:1] or left}")

    def _delete(self) -> None:
        """Delete all but the latest records of a partition, which somebody may have yet to see."""
        partition = self._random.randrange(self.partitions)
        up_to = self.logs[-1].end(partition) - self._random.randrange(20)
        if up_to > 0:
            # From now on they may be gone. And they may come back: a follower that leads next has them until it has
            # heard of it.
            self.logs[-1].begin(partition, up_to)
            try:
                asked = [TopicPartition(self._topic, partition, up_to)]
                how = {"request_timeout": ADMIN_S, "operation_timeout": SPREAD_S}
                for future in self._admin.delete_records(asked, **how).values():
                    future.result(2 * ADMIN_S)
            except NOT_NOW:
                return

    async def make_anew(self) -> None:
        """Delete the topic and make another of its name."""
        await self._flush()
        await asyncio.to_thread(self._note_starts)
        await asyncio.to_thread(self._until, self._is_gone, "is not deleted")
        await asyncio.to_thread(self._until, self._is_made, "is not made")
        self._producer = self._new_producer()
        self.logs.append(Log())

    def _until(self, is_done: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + FLUSH_S
        while True:
            try:
                if is_done():
                    return
            except NOT_NOW as error:
                log.debug("%s: %s", self._topic, error)
            if time.monotonic() > deadline:
                raise GatewayRefused(self._topic, f"the topic {problem}")
            time.sleep(TRY_EVERY_S)

    def _is_gone(self) -> bool:
        if self._topic not in self._admin.list_topics(timeout=ADMIN_S).topics:
            return True
        self._admin.delete_topics([self._topic], request_timeout=ADMIN_S)[self._topic].result(2 * ADMIN_S)
        return False

    def _is_made(self) -> bool:
        if self._topic in self._admin.list_topics(timeout=ADMIN_S).topics:
            return True
        made = NewTopic(self._topic, self.partitions, self._replicas)
        self._admin.create_topics([made], request_timeout=ADMIN_S)[self._topic].result(2 * ADMIN_S)
        return False

    async def finish(self) -> dict[int, int]:
        """Write a last record on each partition, which everybody hears; their offsets."""
        for number in range(self.partitions):
            await asyncio.to_thread(self._until, partial(self._produce, END, number), "takes no record")
        await self._flush()
        await asyncio.to_thread(self._note_starts)
        return {number: self.logs[-1].end(number) - 1 for number in range(self.partitions)}

    def _note_starts(self) -> None:
        """Ask where the log begins now."""
        self._until(self._has_starts, "does not say where it begins")

    def _has_starts(self) -> bool:
        reader = Consumer({**self._kafka, "group.id": "strandline-verify"})
        try:
            for number in range(self.partitions):
                place = TopicPartition(self._topic, number)
                first, _ = reader.get_watermark_offsets(place, timeout=ADMIN_S)
                self.logs[-1].begin(number, first)
        finally:
            reader.close()
        return True
