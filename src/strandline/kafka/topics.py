"""Topics that are made when they are missing."""

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


async def ensure_topics(
    settings: Mapping[str, object],
    topics: Iterable[str],
    *,
    like: str,
    within: timedelta = timedelta(seconds=20),
) -> None:
    """Make those of the topics that are missing, with as many partitions as another; return when all are seen."""
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
    while not missing <= found.keys():
        if time.monotonic() > deadline:
            raise BrokerUnreachable(address, f"does not show {', '.join(sorted(missing))} after {seconds:g} s")
        time.sleep(LOOK_EVERY)
        found = admin.list_topics(timeout=seconds).topics
