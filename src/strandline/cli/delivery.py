"""Records to a topic, each acknowledged by all replicas, with a bound on what is on its way."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from strandline.clock import SystemClock
from strandline.counts import counted
from strandline.errors import AuthenticationFailed, BrokerRefused, BrokerUnreachable, OptionError, StrandlineError
from strandline.kafka.librdkafka import AWAY, SAFE, asking, client, translated
from strandline.kafka.listener import explained
from strandline.units import Nanos

ANSWER_WITHIN = 10.0
DELIVER_WITHIN = 60.0
# librdkafka gives each record up within its time; this is for the case that it does not.
WAIT = Nanos(120_000_000_000)
# How soon a signal is heard.
POLL_WITHIN = 0.2
PARTITIONS = 4
QUEUE_BYTES = 32 << 20
# A broker takes 1 MiB, and counts what is around a record too.
MOST_MESSAGE = (1 << 20) + 4096

clock = SystemClock()


class Delivery:
    """A topic that records are written to; complete when `finish` returns."""

    def __init__(self, settings: Mapping[str, str], topic: str, partitions: int | None) -> None:
        self.topic = topic
        self._settings = settings
        self._address = settings["bootstrap.servers"]
        self._failure: KafkaError | None = None
        self._trouble: KafkaError | None = None
        own: dict[str, Any] = {"error_cb": self._note}
        admin = client(AdminClient, {**settings, **own})
        self._producer = client(
            Producer,
            {
                "linger.ms": 20,
                "compression.type": "lz4",
                **settings,
                **own,
                **SAFE,
                "delivery.timeout.ms": int(DELIVER_WITHIN * 1000),
                "message.max.bytes": MOST_MESSAGE,
                "queue.buffering.max.kbytes": QUEUE_BYTES >> 10,
            },
        )
        with asking(self._address, settings):
            try:
                self._keeps_ms = self._prepare(admin, partitions)
            except KafkaException as error:
                # What went wrong with the connection waits to be told.
                admin.poll(0)
                raise self._told(error.args[0]) from None

    def _prepare(self, admin: AdminClient, partitions: int | None) -> int | None:
        """Create the topic where it is missing. How long it keeps records by their time; None for ever."""
        found = admin.list_topics(timeout=ANSWER_WITHIN).topics.get(self.topic)
        if found is None or found.error is not None:
            # What is old would be deleted at once by the default of seven days.
            new = NewTopic(self.topic, partitions or PARTITIONS, config={"retention.ms": "-1"})
            admin.create_topics([new])[self.topic].result(ANSWER_WITHIN)
            return None
        if partitions is not None and partitions != len(found.partitions):
            raise OptionError(f"topic '{self.topic}' is there and has {counted(len(found.partitions), 'partition')}")
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        config = admin.describe_configs([resource])[resource].result(ANSWER_WITHIN)
        is_by_time = config["message.timestamp.type"].value == "CreateTime"
        keeps = int(config["retention.ms"].value or -1)
        return keeps if is_by_time and keeps >= 0 and "delete" in str(config["cleanup.policy"].value) else None

    def write(self, key: str, value: bytes, stamp_ms: int, headers: tuple[tuple[str, bytes | None], ...] = ()) -> None:
        """Hand a record over; waits while too much is on its way."""
        if self._keeps_ms is not None and stamp_ms < clock.wall() // 1_000_000 - self._keeps_ms:
            days = f"{self._keeps_ms / 86_400_000:g} days"
            raise StrandlineError(
                f"topic '{self.topic}' keeps records for {days}, and these are older: Kafka would delete them. "
                "Set its retention.ms to -1, name a new topic, or shift the times by --at"
            )
        deadline = clock.monotonic() + WAIT
        while True:
            self._check()
            try:
                self._producer.produce(
                    self.topic, value, key, timestamp=stamp_ms, headers=list(headers), on_delivery=self._delivered
                )
            except BufferError:
                if clock.monotonic() > deadline:
                    raise BrokerUnreachable(self._address, "takes no more records") from None
                self._producer.poll(POLL_WITHIN)
            except KafkaException as error:
                raise self._told(error.args[0]) from None
            else:
                self._producer.poll(0)
                return

    def finish(self) -> None:
        """Wait until every record is acknowledged."""
        deadline = clock.monotonic() + WAIT
        while left := self._producer.flush(POLL_WITHIN):
            self._check()
            if clock.monotonic() > deadline:
                raise BrokerUnreachable(
                    self._address, f"{counted(left, 'record was', 'records were')} not acknowledged in time"
                )
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # What is queued is not to go out later, one by one, while the process ends.
            self._producer.purge()
            self._producer.flush(1.0)

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._failure is None:
            self._failure = error

    def _note(self, error: KafkaError) -> None:
        # The last one is mostly that no broker is left, which says less than what came before it.
        if self._trouble is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._told(self._failure)

    def _told(self, error: KafkaError) -> StrandlineError:
        trouble = self._trouble or error
        if trouble.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}:
            return AuthenticationFailed(trouble.str())
        if error.code() in AWAY:
            return explained(translated(trouble if trouble.code() in AWAY else error, self._address), self._settings)
        if error.code() < 0:
            return BrokerUnreachable(self._address, trouble.str())
        return BrokerRefused(error.name(), f"topic '{self.topic}'")
