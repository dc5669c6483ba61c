"""The partitions of a topic and offsets in them: the ends, and where a time is."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TypeVar

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from strandline.errors import UnknownTopic
from strandline.kafka.librdkafka import asking, client
from strandline.kafka.partition import Partition

T = TypeVar("T")


class Listing:
    """Asks the brokers, as one who may read what is committed."""

    def __init__(self, settings: Mapping[str, object], within: timedelta = timedelta(seconds=20)) -> None:
        self._settings = settings
        self._address = str(settings.get("bootstrap.servers"))
        self._admin = client(AdminClient, settings)
        self._within = within.total_seconds()

    async def partitions(self, topic: str) -> list[Partition]:
        """Every partition of a topic."""
        return await asyncio.to_thread(self._asked, lambda: self._partitions(topic))

    async def earliest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The first offset of each."""
        return await self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    async def latest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The offset behind the last that may be read, of each."""
        return await self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    async def at(self, partitions: Collection[Partition], milliseconds: int) -> dict[Partition, int]:
        """The first offset whose record has this time or a later one; of those only that have one."""
        # Numbers below 0 have other meanings here, the end of the log among them, and no record is as old.
        found = await self._offsets(partitions, OffsetSpec.for_timestamp(max(0, milliseconds)))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    async def _offsets(self, partitions: Collection[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        asked = {TopicPartition(*partition): spec for partition in partitions}
        return await asyncio.to_thread(self._asked, lambda: self._list(asked))

    def _list(self, asked: dict[TopicPartition, OffsetSpec]) -> dict[Partition, int]:
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._within
        )
        return {
            Partition(p.topic, p.partition): answer.result(2 * self._within).offset for p, answer in answers.items()
        }

    def _partitions(self, topic: str) -> list[Partition]:
        # All of them: a broker may make a topic that is asked for by its name.
        found = self._admin.list_topics(timeout=self._within).topics.get(topic)
        if found is None or not found.partitions:
            raise UnknownTopic(topic, self._address)
        return sorted(Partition(topic, number) for number in found.partitions)

    def _asked(self, ask: Callable[[], T]) -> T:
        with asking(self._address, self._settings):
            return ask()
