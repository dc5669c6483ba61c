"""The partitions of a topic and offsets in them: the ends, and where a time is."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self, TypeVar

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from strandline.errors import UnknownTopic
from strandline.kafka.librdkafka import asking, client
from strandline.kafka.partition import Partition

T = TypeVar("T")


class Listing:
    """Asks the brokers about one topic, as one who may read what is committed."""

    def __init__(self, settings: Mapping[str, object], topic: str, within: timedelta) -> None:
        """Use `of`: it is the answer about the topic that makes the client fit for questions about offsets.

        A new client of librdkafka (2.16) asks over its bootstrap connection, and drops that when the first answer has
        told it who the brokers are. A question about offsets that is on its way then is asked again after 3 s only.
        """
        self._topic = topic
        self._settings = settings
        self._address = str(settings.get("bootstrap.servers"))
        self._admin = client(AdminClient, settings)
        self._within = within.total_seconds()
        self._partitions: list[Partition] = []

    @classmethod
    async def of(cls, settings: Mapping[str, object], topic: str, within: timedelta = timedelta(seconds=20)) -> Self:
        """Ask which partitions a topic has."""
        listing = cls(settings, topic, within)
        listing._partitions = await listing._asked(listing._find)
        return listing

    def _find(self) -> list[Partition]:
        # All of them: a broker may make a topic that is asked for by its name.
        found = self._admin.list_topics(timeout=self._within).topics.get(self._topic)
        if found is None or not found.partitions:
            raise UnknownTopic(self._topic, self._address)
        return sorted(Partition(self._topic, number) for number in found.partitions)

    async def earliest(self) -> dict[Partition, int]:
        """The first offset of each partition."""
        return await self._offsets(OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    async def latest(self) -> dict[Partition, int]:
        """The offset behind the last that may be read, of each."""
        return await self._offsets(OffsetSpec.latest())  # type: ignore[no-untyped-call]

    async def at(self, milliseconds: int) -> dict[Partition, int]:
        """The first offset whose record has this time or a later one; of those only that have one."""
        # Numbers below 0 have other meanings here, the end of the log among them, and no record is as old.
        found = await self._offsets(OffsetSpec.for_timestamp(max(0, milliseconds)))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    async def _offsets(self, spec: OffsetSpec) -> dict[Partition, int]:
        return await self._asked(lambda: self._list(spec))

    def _list(self, spec: OffsetSpec) -> dict[Partition, int]:
        asked = {TopicPartition(*partition): spec for partition in self._partitions}
        answers = self._admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._within
        )
        return {
            Partition(p.topic, p.partition): answer.result(2 * self._within).offset for p, answer in answers.items()
        }

    async def _asked(self, ask: Callable[[], T]) -> T:
        def asked() -> T:
            with asking(self._address, self._settings):
                return ask()

        return await asyncio.to_thread(asked)
