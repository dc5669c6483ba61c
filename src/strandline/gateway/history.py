"""Older parts of the log, read from Kafka for whoever resumes from there: shared by all, and never twice at once."""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from kio.schema.errors import ErrorCode

from strandline.core.gap import ANOTHER_LOG, Gap, Log, Reason, begin
from strandline.errors import BrokerRefused, BrokerUnreachable, Moved, TopicReplaced
from strandline.gateway.feed import ISOLATION, RECORD_BYTES, Feed, Item, Naming, read
from strandline.gateway.rounds import Rounds
from strandline.kafka.cluster import EARLIEST, LATEST, MOVED, Cluster, Fetched, Isolation, again
from strandline.kafka.partition import Partition
from strandline.threads import aside
from strandline.wire.resume_token import Position

LEAST_BYTES = 64 << 10
MOST_BYTES = 1 << 20
READ_AT_ONCE = 4
# Chunks are looked through one by one; what was deleted is a small one for each place that somebody asks for.
MOST_CHUNKS = 1000
# A client that waits for old records hears after so long that they cannot be had now, and may ask another worker.
PATIENCE = timedelta(seconds=10)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """What lies from `first` up to `end` in a partition."""

    first: int
    end: int
    items: list[Item]
    nbytes: int

    def since(self, offset: int, most: int) -> tuple[list[Item], int]:
        """The first items from an offset on, of a gap around it what lies behind; and where to go on behind them."""
        low = bisect_left(self.items, offset, key=_place)
        high = low + most
        found = self.items[low:high]
        around = self.items[low - 1] if low else None
        if isinstance(around, Gap) and around.end > offset:
            found.insert(0, replace(around, first=offset))
        return found, _place(self.items[high]) if high < len(self.items) else self.end


class History:
    """Reads chunks, and keeps the last few for the next who wants them."""

    def __init__(self, settings: Mapping[str, str], topics: Collection[str], *, most_bytes: int) -> None:
        self._settings = settings
        self._topics = topics
        self._cluster = self._new_cluster()
        self._most = most_bytes
        self._bytes = 0
        self._ends = Rounds(self._ask_end)
        self._epoch_ends = Rounds(self._ask_epoch_end)
        self._times = Rounds(self._ask_time)
        self._confirmed = Rounds(self._confirm)
        self._renewals = Rounds(self._start_anew)
        self._kept: OrderedDict[tuple[Feed, int], Chunk] = OrderedDict()
        self._coming: dict[tuple[Feed, int], asyncio.Task[Chunk]] = {}
        self._slots = asyncio.Semaphore(READ_AT_ONCE)

    def _new_cluster(self) -> Cluster:
        cluster = Cluster(self._settings)
        cluster.patience = PATIENCE
        return cluster

    async def start(self) -> None:
        """Learn who leads what."""
        await self._cluster.partitions(self._topics)

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()

    async def begin(self, feed: Feed, position: Position) -> tuple[int, list[Gap]]:
        """Where a client goes on in a partition, and what it cannot have before that."""
        offset, topic_id, epoch, seen = position
        is_same = topic_id in {None, feed.topic_id}
        end, epoch_end = feed.end, None
        if is_same and offset > end:
            # Another process may have been ahead of this one.
            end = max(await self._ends.answer(feed.partition), feed.end)
        if is_same and epoch is not None and (epoch != feed.epoch or offset > feed.end):
            epoch_end = await self._epoch_ends.answer((feed.partition, epoch))
        log = Log(feed.topic_id, end, feed.horizon)
        reached, gaps = begin(offset, log, topic_id=topic_id, epoch_end=epoch_end, seen=seen)
        if any(gap.reason in ANOTHER_LOG for gap in gaps):
            # What says so may be the log of a topic made anew since, or the feed be of one that is no more.
            await self._confirmed.answer(feed)
        return reached, gaps

    async def since(self, feed: Feed, time: int) -> int:
        """The first offset whose record has a time, in milliseconds, or a later one; the end where there is none."""
        offset = await self._times.answer((feed.partition, time))
        return feed.end if offset < 0 else offset

    async def _ask_end(self, partition: Partition) -> int:
        return await self._offset(partition, LATEST, Isolation.READ_UNCOMMITTED)

    async def _ask_time(self, wanted: tuple[Partition, int]) -> int:
        return await self._offset(*wanted, ISOLATION)

    async def _offset(self, partition: Partition, time: int, isolation: Isolation) -> int:
        return (await self._asked(self._cluster.offsets({partition: time}, isolation)))[partition].offset

    async def _ask_epoch_end(self, wanted: tuple[Partition, int]) -> int | None:
        return await self._asked(self._cluster.epoch_end(*wanted))

    async def _confirm(self, feed: Feed) -> None:
        if not self._has(feed):
            # It may be this one that is behind: the feed is read by another.
            await self._renewals.answer(None)
        if not self._has(feed):
            raise TopicReplaced(feed.partition.topic)
        await self._asked(self._cluster.confirm([feed.partition]))

    async def _asked(self, answer: Awaitable[T]) -> T:
        """What is answered; where the topic was made anew, whoever asks next asks for the new one."""
        try:
            return await answer
        except TopicReplaced:
            await self._renewals.answer(None)
            raise

    def _has(self, feed: Feed) -> bool:
        """Whether a feed is of the topic that is known here by its name."""
        return self._cluster.topic_id(feed.partition.topic) == feed.topic_id

    async def read(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        """The chunk that an offset lies in, of about so many bytes where it has to be read."""
        for key, chunk in reversed(self._kept.items()):
            if key[0] is feed and chunk.first <= offset < chunk.end:
                self._kept.move_to_end(key)
                return chunk
        key = feed, offset
        task = self._coming.get(key)
        if task is None:
            task = self._coming[key] = asyncio.create_task(self._read(feed, offset, most_bytes))
            task.add_done_callback(lambda _: self._coming.pop(key, None))
        return await asyncio.shield(task)

    async def _read(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        async with self._slots:
            fetching = again(lambda: self._fetch(feed, offset, most_bytes), self._cluster.patience)
            chunk = await self._asked(fetching)
        self._kept[feed, offset] = chunk
        self._bytes += chunk.nbytes
        while len(self._kept) > (1 if self._bytes > self._most else MOST_CHUNKS):
            self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return chunk

    async def _start_anew(self, _: None) -> None:
        """A topic was made anew: whoever asks again asks for the new one."""
        fresh = self._new_cluster()
        try:
            await fresh.partitions(self._topics)
        except BaseException:
            fresh.close()
            raise
        if any(fresh.topic_id(topic) != self._cluster.topic_id(topic) for topic in self._topics):
            fresh, self._cluster = self._cluster, fresh
        # Where nothing has changed since, nobody is disturbed who asks already.
        fresh.close()

    async def _fetch(self, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        partition = feed.partition
        if not self._has(feed):
            raise TopicReplaced(partition.topic)
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
            await self._cluster.confirm([partition])
            first = max(offset, starts[partition].offset)
            if first == offset:
                raise Moved(partition, "it moved while we looked")
            return Chunk(offset, first, [Gap(offset, first, Reason.DELETED)], RECORD_BYTES)
        if fetched.error is not ErrorCode.none:
            raise BrokerRefused(fetched.error.name, partition)
        if not fetched.records:
            raise Moved(partition, "its leader does not have the records yet")
        return await aside(partial(_chunk, fetched, feed.naming))


def _chunk(fetched: Fetched, naming: Naming) -> Chunk:
    found = read(fetched, naming)
    # What they are in memory: of records that are small, or packed well, that is many times what came.
    size = sum(RECORD_BYTES + (0 if isinstance(item, Gap) else len(item.frame)) for item in found.items)
    return Chunk(fetched.asked, found.position, found.items, size + RECORD_BYTES)


def _place(item: Item) -> int:
    return item.first if isinstance(item, Gap) else item.offset
