"""Every record that is published is reported on once: when it is safe, or with what went wrong."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta

import pytest
from confluent_kafka.admin import AdminClient

from strandline.errors import BrokerRefused, BrokerUnreachable, KafkaError, OptionError, PublisherFull, UnknownTopic
from strandline.kafka.flushing import flush
from strandline.kafka.producer import Publisher
from strandline.kafka.topics import ensure_topics
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic
from tests.support import TIMEOUT, read_records

LONG = timedelta(seconds=TIMEOUT)


class Errors:
    """What was told of each record."""

    def __init__(self) -> None:
        self.told: list[KafkaError | None] = []

    def add(self, _about: object, error: KafkaError | None) -> None:
        self.told.append(error)


def publishing(settings: dict[str, object], use: Callable[[Publisher], Awaitable[None]]) -> None:
    """Use a publisher on a loop of its own."""

    async def run() -> None:
        publisher = Publisher(settings)
        try:
            await use(publisher)
        finally:
            publisher.close()

    asyncio.run(run())


def test_records_are_written_in_order_and_each_reported_on_once_on_the_loop(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "published")
    reports: list[tuple[int, KafkaError | None]] = []

    async def use(publisher: Publisher) -> None:
        loop = asyncio.get_running_loop()

        def done(number: int, error: KafkaError | None) -> None:
            assert asyncio.get_running_loop() is loop
            reports.append((number, error))

        for number in range(1_000):
            publisher.publish("published", b"%d" % number, b"key", [("sea", b"salt")], on_done=done, about=number)
        assert await flush(publisher, LONG) == 0
        assert publisher.outstanding == 0

    publishing(dict(kafka.settings()), use)
    assert reports == [(number, None) for number in range(1_000)]
    assert read_records(kafka.address, "published", 1_000) == [b"%d" % number for number in range(1_000)]


def test_a_full_publisher_says_so_and_takes_more_when_there_is_room(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "full")
    refused = 0

    async def use(publisher: Publisher) -> None:
        nonlocal refused
        for number in range(200):
            while True:
                try:
                    publisher.publish("full", b"%d" % number)
                    break
                except PublisherFull:
                    refused += 1
                    await asyncio.wait_for(publisher.room(), TIMEOUT)
        assert await flush(publisher, LONG) == 0

    publishing({**kafka.settings(), "queue.buffering.max.messages": 10}, use)
    assert refused
    assert read_records(kafka.address, "full", 200) == [b"%d" % number for number in range(200)]


def test_what_fails_is_reported_with_the_reason(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "small", max_message_bytes="1000")
    errors = Errors()

    async def use(publisher: Publisher) -> None:
        publisher.publish("small", b"x" * 5_000, on_done=errors.add)
        publisher.publish("small", b"fits", on_done=errors.add)
        assert await flush(publisher, LONG) == 0
        with pytest.raises(BrokerRefused, match="MSG_SIZE_TOO_LARGE"):
            publisher.publish("small", b"x" * 2_000_000, on_done=errors.add)

    publishing({**kafka.settings(), "linger.ms": 0}, use)
    assert len(errors.told) == 2
    assert isinstance(errors.told[0], BrokerRefused)
    assert "MSG_SIZE_TOO_LARGE" in str(errors.told[0])


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and that nobody else is given."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_publisher_that_is_closed_reports_on_what_it_gives_up(nobody: str) -> None:
    errors = Errors()

    async def use(publisher: Publisher) -> None:
        for _ in range(3):
            publisher.publish("nowhere", b"x", on_done=errors.add)
        assert await flush(publisher, timedelta(milliseconds=50)) == 3
        assert not errors.told

    publishing({"bootstrap.servers": nobody}, use)
    assert [type(error) for error in errors.told] == [BrokerRefused] * 3


def test_a_writer_that_raises_stops_no_other_report(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "raises")
    errors = Errors()
    problems: list[object] = []

    def fall(_about: object, _error: KafkaError | None) -> None:
        raise ValueError("the writer's own fault")

    async def use(publisher: Publisher) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["exception"]))
        for on_done in (fall, errors.add, fall, errors.add):
            publisher.publish("raises", b"x", on_done=on_done)
        assert await flush(publisher, LONG) == 0

    publishing(dict(kafka.settings()), use)
    assert errors.told == [None, None]
    assert [str(problem) for problem in problems] == ["the writer's own fault"] * 2


def test_settings_that_do_not_fit_a_publisher_are_refused_by_name() -> None:
    async def never(_: Publisher) -> None:
        raise AssertionError

    for settings in ({"acks": 1}, {"linger.m": 5}):
        with pytest.raises(OptionError, match=next(iter(settings))):
            publishing(dict(settings), never)


def test_topics_that_are_missing_are_made_like_another(kafka: KafkaCluster, nobody: str) -> None:
    create_topic(kafka.address, "model", 3)
    settings = kafka.settings()
    asyncio.run(ensure_topics(settings, ["results", "dead"], like="model", within=LONG))
    asyncio.run(ensure_topics(settings, ["results", "model"], like="model", within=LONG))
    found = AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=TIMEOUT).topics
    assert [len(found[topic].partitions) for topic in ("results", "dead")] == [3, 3]
    with pytest.raises(UnknownTopic):
        asyncio.run(ensure_topics(settings, ["results"], like="not-there"))
    with pytest.raises(BrokerRefused, match="TOPIC_EXCEPTION for the making of topic 'no name'"):
        asyncio.run(ensure_topics(settings, ["no name"], like="model"))
    away = {"bootstrap.servers": nobody}
    with pytest.raises(BrokerUnreachable):
        asyncio.run(ensure_topics(away, ["results"], like="model", within=timedelta(milliseconds=300)))
