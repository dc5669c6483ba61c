"""Topics that are ready for use when the call returns.

Kafka's controller answers a request to create a topic, or to add partitions, before the brokers know of it. A client
that asks a broker in this moment hears of no such topic, of fewer partitions or of no leader, and a producer fails the
records that name a partition by its number. Every test and bench that creates topics or adds partitions does it here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v11.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v11.response import MetadataResponse, MetadataResponseTopic
from kio.schema.types import TopicName

from strandline.errors import BrokerUnreachable
from strandline.kafka.cluster import LATEST, Cluster, Isolation, host_and_port
from strandline.kafka.connection import Connection
from strandline.kafka.security import Security
from tests.support import TIMEOUT

ASK_EVERY = 0.02


def create_topics(settings: Mapping[str, Any], *topics: NewTopic) -> None:
    """Create topics, also under the names of topics that were just deleted; return when every leader serves them."""

    async def create() -> None:
        async with _brokers(settings) as brokers:
            # A broker that has not heard of a deletion shows the deleted topic under the same name.
            deleted = await brokers.ids([topic.topic for topic in topics])
            admin = AdminClient(dict(settings))
            for made in admin.create_topics(list(topics)).values():
                await asyncio.to_thread(made.result, TIMEOUT)
            await _served(settings, brokers, {topic.topic: topic.num_partitions for topic in topics}, deleted)

    _run(create, [topic.topic for topic in topics])


def add_partitions(settings: Mapping[str, Any], topic: str, count: int) -> None:
    """Enlarge a topic to so many partitions; return when every leader serves them."""

    async def add() -> None:
        admin = AdminClient(dict(settings))
        (added,) = admin.create_partitions([NewPartitions(topic, count)]).values()
        await asyncio.to_thread(added.result, TIMEOUT)
        async with _brokers(settings) as brokers:
            await _served(settings, brokers, {topic: count})

    _run(add, [topic])


def wait_until_served(settings: Mapping[str, Any], topics: Mapping[str, int]) -> None:
    """Wait until all brokers know topics with at least so many partitions, and every leader serves its partitions."""

    async def wait() -> None:
        async with _brokers(settings) as brokers:
            await _served(settings, brokers, topics)

    _run(wait, topics)


def _run(do: Callable[[], Awaitable[None]], topics: Iterable[str]) -> None:
    async def within() -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                await do()
        except TimeoutError:
            raise AssertionError(f"not served by all brokers after {TIMEOUT:g} s: {', '.join(topics)}") from None

    # A thread, because a test may call this on an event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, within()).result()


async def _served(
    settings: Mapping[str, Any],
    brokers: "_Brokers",
    topics: Mapping[str, int],
    deleted: frozenset[UUID] = frozenset(),
) -> None:
    while not await brokers.all_know(topics, deleted):
        await asyncio.sleep(ASK_EVERY)
    # A broker announces that it leads a partition before it has opened the log.
    cluster = Cluster(settings)
    cluster.patience = timedelta(seconds=TIMEOUT)
    try:
        partitions = await cluster.partitions(topics)
        await cluster.offsets(dict.fromkeys(partitions, LATEST), Isolation.READ_UNCOMMITTED)
    finally:
        cluster.close()


class _Brokers:
    """Asks each broker of a cluster by itself."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._seeds = [host_and_port(part) for part in settings["bootstrap.servers"].split(",")]
        self._security = Security.parse(settings)
        self._open: dict[tuple[str, int], Connection] = {}

    async def ids(self, topics: list[str]) -> frozenset[UUID]:
        """The ids that brokers know these topics by now."""
        while (answers := await self._ask_all(topics)) is None:
            await asyncio.sleep(ASK_EVERY)
        shown = [topic for answer in answers for topic in answer.topics]
        return frozenset(topic.topic_id for topic in shown if topic.topic_id is not None)

    async def all_know(self, topics: Mapping[str, int], deleted: frozenset[UUID]) -> bool:
        """Whether every broker that is in the cluster shows at least so many partitions, each with a leader."""

        def is_known(topic: MetadataResponseTopic) -> bool:
            leaders = [partition.leader_id for partition in topic.partitions]
            return (
                topic.error_code is ErrorCode.none
                and topic.topic_id not in deleted
                and len(leaders) >= topics[topic.name]
                and min(leaders) >= 0
            )

        answers = await self._ask_all(list(topics))
        return answers is not None and all(is_known(topic) for answer in answers for topic in answer.topics)

    async def _ask_all(self, topics: list[str]) -> list[MetadataResponse] | None:
        """Each broker's answer; None if one that the cluster counts as alive does not answer."""
        first = await self._ask_first(topics)
        try:
            return [first, *[await self._ask((broker.host, int(broker.port)), topics) for broker in first.brokers]]
        except BrokerUnreachable:
            return None

    async def _ask_first(self, topics: list[str]) -> MetadataResponse:
        while True:
            for place in self._seeds:
                try:
                    return await self._ask(place, topics)
                except BrokerUnreachable:
                    await asyncio.sleep(ASK_EVERY)

    async def _ask(self, place: tuple[str, int], topics: list[str]) -> MetadataResponse:
        if place not in self._open or not self._open[place].is_usable:
            self._open[place] = await Connection.open(*place, self._security, client_id="test", within=TIMEOUT)
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        return await self._open[place].ask(request, MetadataResponse, within=TIMEOUT)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


@asynccontextmanager
async def _brokers(settings: Mapping[str, Any]) -> AsyncIterator[_Brokers]:
    brokers = _Brokers(settings)
    try:
        yield brokers
    finally:
        brokers.close()
