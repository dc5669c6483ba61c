"""Orders that are written to two clusters through one address, and a group that reads both: each read once, or not?"""

import threading
from collections import Counter
from threading import Event, Lock
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer

PAUSE_S = 0.01
POLL_S = 0.2
# Long enough for a cluster that is killed and started again.
PATIENCE_MS = 300_000


class Clerk:
    """Writes numbered orders to several topics until told to stop; knows which are acknowledged."""

    def __init__(self, kafka: str, topics: list[str]) -> None:
        self.acknowledged: Counter[str] = Counter()
        self._topics = topics
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": PATIENCE_MS,
                "log_level": 0,
            }
        )

    def write(self, stop: Event) -> None:
        """Until it is told to stop, and then until all is acknowledged."""
        number = 0
        while not stop.wait(PAUSE_S):
            for topic in self._topics:
                self._producer.produce(topic, f"{topic} {number}", key=f"{number}", on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush(PATIENCE_MS / 1000)

    def _delivered(self, error: KafkaError | None, message: "Message[Any, Any]") -> None:
        if error is None:
            self.acknowledged[str(message.topic())] += 1


class Readers:
    """Members of one group over all topics; counts how often each order was read."""

    def __init__(self, kafka: str, topics: list[str], members: int) -> None:
        self.read: Counter[bytes] = Counter()
        self.by_topic: Counter[str] = Counter()
        self._lock = Lock()
        self._topics = topics
        self._settings = {
            "bootstrap.servers": kafka,
            "group.id": "clerks",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self._members = members

    def threads(self, stop: Event) -> list[threading.Thread]:
        """One for each member, not started."""
        return [threading.Thread(target=self._work, args=(stop,), daemon=True) for _ in range(self._members)]

    def _work(self, stop: Event) -> None:
        consumer = Consumer(dict(self._settings))
        consumer.subscribe(self._topics)
        try:
            while not stop.is_set():
                for message in consumer.consume(500, POLL_S):
                    if message.error() is None:
                        with self._lock:
                            self.read[message.value() or b""] += 1
                            self.by_topic[str(message.topic())] += 1
        finally:
            consumer.close()
