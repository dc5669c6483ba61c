"""Older parts of the log, read from Kafka for whoever resumes from there: shared by all, and never twice at once."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from strandline.core.gap import Gap, Log, Reason, begin
from strandline.errors import BrokerRefused, BrokerUnreachable, Moved
from strandline.gateway.feed import ISOLATION, Feed, Item, read
from strandline.kafka.cluster import EARLIEST, LATEST, MOVED, Cluster, Isolation, again
from strandline.wire.resume_token import Position

if TYPE_CHECKING:
    from strandline.kafka.partition import Partition

LEAST_BYTES = 64 << 10
MOST_BYTES = 1 << 20
READ_AT_ONCE = 4
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Chunk:
    """What lies from `first` up to `end` in a partition."""

    first: int
    end: int
    items: list[Item]
    nbytes: int

    def since(self, offset: int) -> list[Item]:
        """The items from an offset on; of a gap around it, what lies behind."""
        found: list[Item] = []
        for item in self.items:
            if isinstance(item, Gap):
                if item.end > offset:
                    found.append(replace(item, first=max(item.first, offset)))
            elif item.offset >= offset:
                found.append(item)
        return found


class History:
    """Reads chunks, and keeps the last few for the next who wants them."""

    def __init__(self, cluster: Cluster, *, most_bytes: int) -> None:
        self._cluster = cluster
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[Partition, int], Chunk] = OrderedDict()
        self._coming: dict[tuple[Partition, int], asyncio.Task[Chunk]] = {}
        self._slots = asyncio.Semaphore(READ_AT_ONCE)

    async def begin(self, feed: Feed, position: Position) -> tuple[int, list[Gap]]:
        """Where a client goes on in a partition, and what it cannot have before that."""
        offset, topic_id, epoch = position
        is_same = topic_id in {None, feed.topic_id}
        end, epoch_end = feed.end, None
        if is_same and offset > end:
            # Another process may have been ahead of this one.
            ends = await self._cluster.offsets({feed.partition: LATEST}, Isolation.READ_UNCOMMITTED)
            end = max(feed.end, ends[feed.partition].offset)
        if is_same and epoch is not None and epoch != feed.epoch:
            found = await self._cluster.epoch_end(feed.partition, epoch)
            epoch_end = None if found == NO_EPOCH else found
        return begin(offset, Log(feed.topic_id, end, feed.horizon), topic_id=topic_id, epoch_end=epoch_end)

    async def since(self, feed: Feed, time: int) -> int:
        """The first offset whose record has a time, in milliseconds, or a later one; the end where there is none."""
        found = await self._cluster.offsets({feed.partition: time}, ISOLATION)
        offset = found[feed.partition].offset
        return feed.end if offset < 0 else offset

    async def read(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        """The chunk that an offset lies in, of about so many bytes where it has to be read."""
        for key, chunk in reversed(self._kept.items()):
            if key[0] == feed.partition and chunk.first <= offset < chunk.end:
                self._kept.move_to_end(key)
                return chunk
        key = feed.partition, offset
        task = self._coming.get(key)
        if task is None:
            task = self._coming[key] = asyncio.create_task(self._read(feed, offset, most_bytes))
            task.add_done_callback(lambda _: self._coming.pop(key, None))
        return await asyncio.shield(task)

    async def _read(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        async with self._slots:
            chunk = await again(lambda: self._fetch(feed, offset, most_bytes), self._cluster.patience)
        self._kept[feed.partition, offset] = chunk
        self._bytes += chunk.nbytes
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return chunk

    async def _fetch(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        partition = feed.partition
        try:
            (fetched,) = await self._cluster.fetch(
                self._cluster.leader(partition),
                {partition: offset},
                ISOLATION,
                max_bytes=most_bytes,
                partition_bytes=most_bytes,
                max_wait=timedelta(0),
            )
            if fetched.error in MOVED:
                raise Moved(partition, fetched.error.name)
        except (BrokerUnreachable, Moved):
            await self._cluster.refresh()
            raise
        if fetched.error is ErrorCode.offset_out_of_range:
            starts = await self._cluster.offsets({partition: EARLIEST}, ISOLATION)
            first = max(offset, starts[partition].offset)
            if first == offset:
                raise Moved(partition, "it moved while we looked")
            return Chunk(offset, first, [Gap(offset, first, Reason.DELETED)], 0)
        if fetched.error is not ErrorCode.none:
            raise BrokerRefused(fetched.error.name, partition)
        if not fetched.records:
            raise Moved(partition, "its leader does not have the records yet")
        found = await asyncio.to_thread(read, fetched, feed.naming)
        return Chunk(offset, found.position, found.items, 2 * len(fetched.records))
