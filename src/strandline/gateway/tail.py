"""Reads what is new in all partitions, from all their leaders at once, and hands it to the hub.

A gateway without Kafka goes on serving what it holds and says that it is not ready; so nothing here gives up but on
what a broker refuses for good.
"""

import asyncio
import logging
import random
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.core.gap import Gap, Reason
from strandline.core.retry import Failure, GiveUp, Within, decide
from strandline.errors import BrokerRefused, BrokerUnreachable, KafkaError, Moved, TopicReplaced, UnknownTopic
from strandline.gateway.feed import ISOLATION, Feed, Naming, Read, read
from strandline.gateway.hub import Hub
from strandline.kafka.cluster import AGAIN, EARLIEST, LATEST, MOVED, Cluster, Fetched
from strandline.kafka.partition import Partition
from strandline.units import Nanos

MAX_WAIT = timedelta(milliseconds=500)
LOOK_EVERY_S = 5.0
FETCH_BYTES = 1 << 20
FOREVER = replace(AGAIN, until=Within(Nanos(2**62)))

log = logging.getLogger(__name__)


class Tail:
    """Runs from `start` until `stop`. `trouble` says what keeps it from reading, where something does."""

    def __init__(
        self,
        settings: Mapping[str, str],
        namings: Mapping[str, Naming],
        hub: Hub,
        *,
        recent_bytes: int,
        max_history_s: float | None = None,
    ) -> None:
        self._settings = settings
        self._namings = namings
        self._hub = hub
        self._recent_bytes = recent_bytes
        self._max_history_s = max_history_s
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self.cluster = Cluster(settings)
        self.trouble: str | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error that ended the reading, where something has that was not foreseen."""

    async def start(self) -> None:
        """Find the ends of all partitions, and read on from there."""
        partitions = await self.cluster.partitions(self._namings)
        ends = await self.cluster.offsets(dict.fromkeys(partitions, LATEST), ISOLATION)
        for partition in partitions:
            self._add(partition, ends[partition].offset)
        await self._set_horizons()
        self._read_from_all()
        self._run("look", self._look())

    async def stop(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self.failed.cancel()
        self.cluster.close()

    def _run(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    def _add(self, partition: Partition, start: int) -> None:
        topic_id = self.cluster.topic_id(partition.topic)
        naming = self._namings[partition.topic]
        feed = Feed(partition, topic_id, naming, start, most_bytes=self._recent_bytes)
        self._hub.feeds[partition] = feed

    def _read_from_all(self) -> None:
        for node in self.cluster.nodes:
            if node not in self._tasks or self._tasks[node].done():
                self._run(node, self._read_from(node))

    async def _read_from(self, node: int) -> None:
        attempt = 0
        while True:
            cluster = self.cluster
            wanted = {
                partition: feed.end for partition, feed in self._hub.feeds.items() if cluster.leader(partition) == node
            }
            if not wanted:
                return  # whoever finds that it leads something again reads on
            try:
                answers = await cluster.fetch(
                    node,
                    wanted,
                    ISOLATION,
                    max_bytes=FETCH_BYTES,
                    partition_bytes=FETCH_BYTES,
                    max_wait=MAX_WAIT,
                )
                moved = [fetched for fetched in answers if not await self._take(fetched)]
                if moved:
                    raise Moved(moved[0].partition, moved[0].error.name)
            except (BrokerUnreachable, Moved) as error:
                attempt += 1
                await self._look_again(error, attempt)
            except KafkaError as error:
                self.trouble = str(error)
                log.exception("reading from node %d has failed", node)
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                attempt, self.trouble = 0, None

    async def _take(self, fetched: Fetched) -> bool:
        """Take what came of a partition; False when its leader must be looked for."""
        feed = self._hub.feeds.get(fetched.partition)
        if feed is None or fetched.asked != feed.end:
            return True
        if fetched.error in MOVED:
            return False
        if fetched.error is ErrorCode.offset_out_of_range:
            await self._pass_over(feed)
        elif fetched.error is not ErrorCode.none:
            raise BrokerRefused(fetched.error.name, fetched.partition)
        elif fetched.records:
            self._hub.came(feed, read(fetched, feed.naming))
        return True

    async def _pass_over(self, feed: Feed) -> None:
        """Go on from the first offset that there is, and tell everybody what is missing."""
        partition, asked = feed.partition, feed.end
        starts = await self.cluster.offsets({partition: EARLIEST}, ISOLATION)
        ends = await self.cluster.offsets({partition: LATEST}, ISOLATION)
        first, end = starts[partition].offset, ends[partition].offset
        if asked < first:
            self._hub.came(feed, Read([Gap(asked, first, Reason.DELETED)], first, None))
        elif asked > end:
            log.warning("%s was cut back from %d to %d", partition, asked, end)
            self._add(partition, end)
            self._hub.replaced(feed, Gap(end, asked, Reason.TRUNCATED))

    async def _look_again(self, error: KafkaError, attempt: int) -> None:
        """Wait a little, and ask who leads what."""
        self.trouble = str(error)
        if attempt == 1:
            log.warning("%s; trying again", error)
        draw = random.random()  # noqa: S311  (spreads retries, keeps no secret)
        answer = decide(FOREVER, Failure.TRANSIENT, attempt=attempt, elapsed=Nanos(0), draw=draw)
        await asyncio.sleep(LOOK_EVERY_S if isinstance(answer, GiveUp) else answer.delay / 1e9)
        await self._refresh()

    async def _look(self) -> None:
        """Now and then look for partitions that were added, and topics that were made anew."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._refresh()
            try:
                await self._set_horizons()
            except KafkaError as error:
                self.trouble = str(error)

    async def _set_horizons(self) -> None:
        """Find the first offsets that are given out, where there is a bound."""
        if self._max_history_s is None:
            return
        oldest = int((time.time() - self._max_history_s) * 1000)
        found = await self.cluster.offsets(dict.fromkeys(self._hub.feeds, oldest), ISOLATION)
        for partition, place in found.items():
            feed = self._hub.feeds.get(partition)
            if feed is not None:
                # Where nothing is so new, nothing is given out but what comes.
                feed.horizon = max(feed.horizon, feed.end if place.offset < 0 else place.offset)

    async def _refresh(self) -> None:
        try:
            partitions = await self._partitions()
        except (BrokerUnreachable, Moved, UnknownTopic) as error:
            self.trouble = str(error)
            return
        for partition in partitions:
            if partition not in self._hub.feeds:
                self._add(partition, 0)
        self._read_from_all()

    async def _partitions(self) -> list[Partition]:
        try:
            return await self.cluster.partitions(self._namings)
        except TopicReplaced as error:
            log.warning("%s", error)
            self.cluster.close()
            self.cluster = Cluster(self._settings)
            found = await self.cluster.partitions(self._namings)
            for partition, feed in list(self._hub.feeds.items()):
                if feed.topic_id != self.cluster.topic_id(partition.topic):
                    del self._hub.feeds[partition]
                    if partition in found:
                        self._add(partition, 0)
                    self._hub.replaced(feed, Gap(feed.end, feed.end, Reason.RECREATED))
            return found
