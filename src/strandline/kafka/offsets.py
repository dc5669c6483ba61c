"""The committed offsets of a group, read and written without being a member of it."""

import asyncio
from collections.abc import Callable, Collection, Mapping

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka import KafkaError as Code

from strandline.errors import GroupInUse, KafkaError
from strandline.kafka.librdkafka import client, translated
from strandline.kafka.partition import Partition

ANSWER_WITHIN = 10.0
# What is said to whoever commits and is not one of the members.
IN_USE = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION, Code.REBALANCE_IN_PROGRESS})


class GroupOffsets:
    """Refused by the broker while the group has members: two readers would overwrite each other's mark."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.name = str(settings["group.id"])
        self._address = str(settings.get("bootstrap.servers"))
        self._client = client(Consumer, {**settings, "enable.auto.commit": False})

    async def committed(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The committed offsets, of the partitions that have one."""
        asked = [TopicPartition(*partition) for partition in partitions]
        found = await self._ask(lambda: self._client.committed(asked, timeout=ANSWER_WITHIN))
        return {Partition(p.topic, p.partition): p.offset for p in found if p.offset >= 0}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit, and return when the broker has it."""
        marks = [TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        await self._ask(lambda: self._client.commit(offsets=marks, asynchronous=False))

    async def _ask(self, act: Callable[[], list[TopicPartition]]) -> list[TopicPartition]:
        try:
            answer = await asyncio.to_thread(act)
        except KafkaException as error:
            raise self._refused(error.args[0], f"group '{self.name}'") from error
        for partition in answer:
            if partition.error is not None:
                raise self._refused(partition.error, f"group '{self.name}', {partition.topic}/{partition.partition}")
        return answer

    def _refused(self, error: Code, where: str) -> KafkaError:
        return GroupInUse(self.name) if error.code() in IN_USE else translated(error, where, self._address)

    async def close(self) -> None:
        """Give up the connections."""
        await asyncio.to_thread(self._client.close)
