"""Orders that are written to two clusters through one address, and a group that reads both: each read once, or not?"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from strandline.errors import StrandlineError
from strandline.stalls import StallDetector

PAUSE_S = 0.01
POLL_S = 0.2
WRITE_SILENCE_S = 300.0
"""Long enough for a cluster that is killed and started again."""
MOST_UNSENT = 1_000_000
"""Orders. More than are written while one cluster is down in the longest demo."""


class Clerk:
    """Writes numbered orders to several topics until told to stop; knows which are acknowledged."""

    def __init__(self, kafka: str, topics: list[str]) -> None:
        self.acknowledged: Counter[str] = Counter()
        self._topics = topics
        self._producer = Producer(
            {
                "bootstrap.servers": kafka,
                "enable.idempotence": True,
                # With more, the batches that a killed broker had stored are refused when it is back, which is fatal.
                "max.in.flight": 1,
                "linger.ms": 5,
                # None expires: how long the clerk waits for the last of them is decided at the end.
                "message.timeout.ms": 0,
                "queue.buffering.max.messages": MOST_UNSENT,
                "log_level": 0,
            }
        )

    def write(self, stop: Event, give_up: Event) -> None:
        """Write until `stop` is set, then wait until every order is acknowledged or `give_up` is set.

        Raises `StrandlineError` where it cannot go on.
        """
        number = 0
        with _reported_as("the writer"):
            while not stop.wait(PAUSE_S):
                for topic in self._topics:
                    self._producer.produce(topic, f"{topic} {number}", key=f"{number}", on_delivery=self._delivered)
                self._producer.poll(0)
                number += 1
            detector = StallDetector(WRITE_SILENCE_S, self.acknowledged.total)
            while not give_up.is_set() and (left := self._producer.flush(POLL_S)):
                problem = detector.problem()
                if problem is not None:
                    raise StrandlineError(f"the writer failed: it {problem}, and {left:,} orders are not acknowledged")

    def _delivered(self, error: KafkaError | None, message: "Message[Any, Any]") -> None:
        if error is not None:
            raise KafkaException(error)  # out of the call that the producer is in
        self.acknowledged[str(message.topic())] += 1


class Readers:
    """Members of one group over all topics; counts how often each order was read."""

    def __init__(self, kafka: str, topics: list[str]) -> None:
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

    def work(self, stop: Event) -> None:
        """Read as a member of the group until `stop` is set; raises `StrandlineError` if it cannot go on."""
        with _reported_as("a reader"):
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


@contextmanager
def _reported_as(name: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise StrandlineError(f"{name} failed: {error.args[0].str()}") from error
    except BufferError as error:
        raise StrandlineError(f"{name} failed: {error}") from error
