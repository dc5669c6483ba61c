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

from strandline.core.away import Away
from strandline.core.gap import Gap, Reason
from strandline.core.retry import Failure, GiveUp, Within, decide
from strandline.errors import BrokerRefused, BrokerUnreachable, KafkaError, Moved, TopicReplaced
from strandline.gateway.feed import ISOLATION, Feed, Naming, Read, read
from strandline.gateway.hub import Hub
from strandline.gateway.rounds import Rounds
from strandline.kafka.cluster import AGAIN, EARLIEST, LATEST, MOVED, Cluster, Fetched
from strandline.kafka.partition import Partition
from strandline.units import Nanos

MAX_WAIT = timedelta(milliseconds=500)
LOOK_EVERY_S = 5.0
# How often it begins anew where a topic is made anew while its end is looked for.
START_TRIES, START_AGAIN_S = 10, 0.5
# Once it reads, everything is asked again for ever; who waited longer for one partition would keep all others waiting.
PATIENCE = timedelta(seconds=2)
# A partition that is not there while others are is asked for again after so long, and then less and less often.
AWAY_S = 0.05
MOST_AWAY_S = 2.0
# At first a leader may just have moved; by then it is known what is wrong.
TOLD_AT = (1, 6)
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
        self._checked: dict[Partition, int] = {}
        """Under which leader it was last seen that the log still has what was read."""
        self._refreshing = asyncio.Lock()
        self._looks = Rounds(self._renew)
        self.cluster = Cluster(settings)
        self._troubles: dict[int, str] = {}
        """By node: what keeps it from reading what that leads."""
        self._unknown: str | None = None
        """Why it was not to be learned lately who leads what; None since something was read."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has the error that ended the reading, where something has that was not foreseen."""

    @property
    def trouble(self) -> str | None:
        return next(iter(self._troubles.values()), self._unknown)

    async def start(self) -> None:
        """Find the ends of all partitions, and read on from there."""
        for left in reversed(range(START_TRIES)):
            try:
                await self._find_ends()
                break
            except TopicReplaced as error:
                if not left:
                    raise
                log.warning("%s", error)
                self._hub.feeds.clear()
                self.cluster.close()
                self.cluster = Cluster(self._settings)
                await asyncio.sleep(START_AGAIN_S)
        self.cluster.patience = PATIENCE
        self._read_from_all()
        self._run("look", self._look())

    async def _find_ends(self) -> None:
        partitions = await self.cluster.partitions(self._namings)
        ends = await self.cluster.offsets(dict.fromkeys(partitions, LATEST), ISOLATION)
        await self.cluster.confirm(partitions)
        for partition in partitions:
            self._add(partition, ends[partition].offset)
        await self._set_horizons()

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
        self._checked[partition] = self.cluster.leader_epoch(partition)

    def _read_from_all(self) -> None:
        for node in self.cluster.nodes:
            if node not in self._tasks or self._tasks[node].done():
                self._run(node, self._read_from(node))

    async def _read_from(self, node: int) -> None:
        attempt = 0
        # Those that brought something, the last ones last.
        lately: dict[Partition, None] = {}
        away: Away[Partition] = Away(first_s=AWAY_S, most_s=MOST_AWAY_S)
        while True:
            cluster = self.cluster
            led = {
                partition: feed.end for partition, feed in self._hub.feeds.items() if cluster.leader(partition) == node
            }
            if not led:
                self._troubles.pop(node, None)
                return  # whoever finds that it leads something again reads on
            away.keep(led)
            # An answer is full with what comes first in it: one that always has much must not keep the others waiting.
            order = [*(one for one in led if one not in lately), *(one for one in lately if one in led)]
            wanted = {partition: led[partition] for partition in away.due(order, self._now())}
            try:
                if any([await self._check(partition) for partition in wanted]):
                    continue
                answers = await cluster.fetch(
                    node,
                    wanted,
                    ISOLATION,
                    max_bytes=FETCH_BYTES,
                    partition_bytes=FETCH_BYTES,
                    max_wait=MAX_WAIT,
                )
                if cluster is not self.cluster:
                    continue  # what came is of a topic that is no more
                for partition in [fetched.partition for fetched in answers if fetched.records]:
                    lately.pop(partition, None)
                    lately[partition] = None
                moved = [fetched for fetched in answers if not await self._take(fetched)]
                if len(moved) == len(wanted):
                    raise Moved(moved[0].partition, moved[0].error.name)
                away.asked(wanted, {fetched.partition for fetched in moved}, self._now())
                if moved:
                    self._troubles[node] = str(Moved(moved[0].partition, moved[0].error.name))
                    self._look_aside()
            except (BrokerUnreachable, Moved, TopicReplaced) as error:
                if cluster is not self.cluster:
                    continue  # it was closed meanwhile, for a topic was made anew
                attempt += 1
                self._troubles[node] = str(error)
                await self._look_again(error, attempt)
            except KafkaError as error:
                self._troubles[node] = str(error)
                log.exception("reading from node %d has failed", node)
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                attempt = 0
                if not away:
                    self._unknown = None
                    self._troubles.pop(node, None)

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
        await self.cluster.confirm([partition])
        if self._hub.feeds.get(partition) is not feed or feed.end != asked:
            return  # while it was asked another leader was read from, or the topic was made anew
        if asked < first:
            self._hub.came(feed, Read([Gap(asked, first, Reason.DELETED)], first, None))
        elif asked > end:
            self._cut_back(feed, end)

    async def _check(self, partition: Partition) -> bool:
        """Look whether a new leader has all that the one before it had given out; True where it has not."""
        feed = self._hub.feeds.get(partition)
        if feed is None:
            return True  # while others were looked at the topic was made anew, with fewer partitions
        leader_epoch = self.cluster.leader_epoch(partition)
        if self._checked[partition] == leader_epoch:
            return False
        if feed.epoch is not None:
            end = await self.cluster.epoch_end(partition, feed.epoch)
            if end is not None and end < feed.end:
                await self.cluster.confirm([partition])
                if self._hub.feeds.get(partition) is feed:
                    self._cut_back(feed, end)
                return True
        self._checked[partition] = leader_epoch
        return False

    def _cut_back(self, feed: Feed, end: int) -> None:
        """The log ends sooner than it did, and goes on from there."""
        log.warning("%s was cut back from %d to %d", feed.partition, feed.end, end)
        self._add(feed.partition, end)
        self._hub.feeds[feed.partition].horizon = min(feed.horizon, end)
        self._hub.replaced(feed, Gap(end, feed.end, Reason.TRUNCATED))
        for session in list(self._hub.sessions):
            # The token before it speaks of a log that is no more.
            session.tell_token()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _look_aside(self) -> None:
        """Ask who leads what, while what is there is read on."""
        if "aside" not in self._tasks or self._tasks["aside"].done():
            self._run("aside", self._refresh())

    async def _look_again(self, error: KafkaError, attempt: int) -> None:
        """Wait a little, and ask who leads what."""
        if attempt in TOLD_AT:
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
                self._unknown = str(error)

    async def _set_horizons(self) -> None:
        """Find the first offsets that are given out, where there is a bound."""
        if self._max_history_s is None:
            return
        oldest = int((time.time() - self._max_history_s) * 1000)
        feeds = dict(self._hub.feeds)
        found = await self.cluster.offsets(dict.fromkeys(feeds, oldest), ISOLATION)
        for partition, feed in feeds.items():
            place = found[partition]
            if self._hub.feeds.get(partition) is feed:
                # Where nothing is so new, nothing is given out but what comes.
                feed.horizon = max(feed.horizon, feed.end if place.offset < 0 else place.offset)

    async def look(self) -> None:
        """Look now, for who knows of something that is not known here; raises where Kafka does not say."""
        await self._looks.answer(None)

    async def _refresh(self) -> None:
        try:
            await self._renew()
        except KafkaError as error:
            # Also what a broker refuses: readers go on with what they have, and it may pass.
            self._unknown = str(error)
            self._read_from_all()

    async def _renew(self, _: None = None) -> None:
        """Look who leads what, one at a time: an older answer must not take the place of a newer one."""
        async with self._refreshing:
            for partition in await self._partitions():
                if partition not in self._hub.feeds:
                    self._add(partition, 0)
                    self._hub.added()
            self._read_from_all()

    async def _partitions(self) -> list[Partition]:
        try:
            return await self.cluster.partitions(self._namings)
        except TopicReplaced as error:
            log.warning("%s", error)
        fresh = Cluster(self._settings)
        fresh.patience = PATIENCE
        try:
            found = await fresh.partitions(self._namings)
            # Who says so may be a broker that was cut off for a while: the leaders know.
            await fresh.confirm([partition for partition in found if self._is_another(partition, fresh)])
        except BaseException:
            # The old one stays, and will say the same again: until everybody is told, nobody reads the new topic.
            fresh.close()
            raise
        self.cluster.close()
        self.cluster = fresh
        for partition, feed in list(self._hub.feeds.items()):
            if self._is_another(partition, fresh):
                del self._hub.feeds[partition]
                if partition in found:
                    self._add(partition, 0)
                self._hub.replaced(feed, Gap(feed.end, feed.end, Reason.RECREATED))
        for session in list(self._hub.sessions):
            # The old one is of no use any more, and positions alone do not tell the topics apart.
            session.tell_token()
        return found

    def _is_another(self, partition: Partition, cluster: Cluster) -> bool:
        """Whether a cluster knows a partition that is read as one of another topic of the same name."""
        feed = self._hub.feeds.get(partition)
        return feed is not None and feed.topic_id != cluster.topic_id(partition.topic)
