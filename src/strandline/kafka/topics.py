"""Topics that are created when they are missing, and are ready for use when that returns."""

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import BrokerUnreachable, UnknownTopic
from strandline.kafka.librdkafka import AWAY, asking, client, translated

LOOK_EVERY = 0.05
ANSWER_WITHIN = 1.0
"""Seconds that a broker has for each answer, also when the time for all of them is over."""


async def ensure_topics(
    settings: Mapping[str, object],
    topics: Iterable[str],
    *,
    like: str,
    within: timedelta = timedelta(seconds=20),
) -> None:
    """Create those of the topics that are missing, with as many partitions as another; return when all have leaders."""
    # Referred to until all is done: an AdminClient that is collected cancels what it was asked for.
    admin = client(AdminClient, settings)
    address = str(settings.get("bootstrap.servers"))

    def ensure() -> None:
        with asking(address, settings):
            _ensure(admin, list(topics), like, address, within.total_seconds())

    await asyncio.to_thread(ensure)


def _ensure(admin: AdminClient, topics: list[str], like: str, address: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    found = admin.list_topics(timeout=seconds).topics
    if like not in found:
        raise UnknownTopic(like, address)
    count = len(found[like].partitions)
    missing = {topic for topic in topics if topic not in found}
    if missing:
        new = [NewTopic(topic, num_partitions=count) for topic in missing]
        for topic, made in admin.create_topics(new, request_timeout=seconds).items():
            try:
                made.result(2 * seconds)
            except KafkaException as error:
                problem = error.args[0]
                if problem.code() in AWAY:
                    raise
                # Else somebody was faster.
                if problem.code() != Code.TOPIC_ALREADY_EXISTS:
                    raise translated(problem, f"the making of topic '{topic}'") from None
        wait_until_led(admin, missing, address, deadline - time.monotonic())


def wait_until_led(admin: AdminClient, topics: Iterable[str], address: str, seconds: float) -> None:
    """Wait until a broker shows topics that were just created, and a leader for each of their partitions; blocks.

    Kafka's controller answers a request to create a topic before the brokers know of it: a reader that starts in this
    moment finds no such topic.

    Raises BrokerUnreachable if a topic or a leader is missing after `seconds`.
    """
    deadline = time.monotonic() + seconds
    wanted = sorted(topics)
    while missing := _without_leader(admin, wanted, seconds):
        if time.monotonic() > deadline:
            raise BrokerUnreachable(address, f"shows no leader for {', '.join(missing)} after {seconds:.3g} s")
        time.sleep(LOOK_EVERY)


def _without_leader(admin: AdminClient, topics: Iterable[str], seconds: float) -> list[str]:
    """The topics that are not shown, and the partitions that have no leader."""
    # All topics: a broker may create a topic that is asked for by its name.
    found = admin.list_topics(timeout=max(ANSWER_WITHIN, seconds)).topics
    missing = []
    for topic in topics:
        partitions = found[topic].partitions if topic in found else {}
        missing += [f"{topic}/{number}" for number, partition in partitions.items() if partition.leader < 0]
        missing += [] if partitions else [topic]
    return missing
