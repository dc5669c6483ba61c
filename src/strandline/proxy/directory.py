"""Which topics there are, whose they are and who leads them: of all clusters, as clients see them.

Kept for a second and made anew when a broker says that it does not lead what it was asked for. A cluster that does not
answer keeps the topics that it had, without leaders: clients wait for it, and do not take them for deleted. So does one
that is down while a directory is made, as when the file is read again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponse, MetadataResponseBroker, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from strandline.core.routes import Routes
from strandline.core.virtual_nodes import Blocks
from strandline.errors import KafkaError
from strandline.proxy.cluster import ANY, Cluster, metadata_request
from strandline.wire import metadata as wire
from strandline.wire.refusal import NO_TIME
from strandline.wire.retyped import Changes, retyped

FRESH_S = 1.0
# Clients that find a new leader missing ask again and again; a cluster is not asked more often than this.
AT_MOST_EVERY_S = 0.1
# Whoever asks for what is known waits no longer for what is new.
PATIENCE_S = 1.0
NO_LEADER = BrokerId(-1)
NO_ID = UUID(int=0)

log = logging.getLogger(__name__)


class Directory:
    """Of all clusters."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        routes: Routes,
        blocks: Blocks,
        *,
        cluster_id: str,
        place: Callable[[str, int], tuple[str, int]],
        learned: Callable[[], None],
    ) -> None:
        self._clusters = clusters
        self._routes = routes
        self._blocks = blocks
        self._place = place
        self._learned = learned
        self._loop = asyncio.get_running_loop()
        self._asked = dict.fromkeys(clusters, float("-inf"))
        self._stale = set(clusters)
        self._refreshing: dict[str, asyncio.Task[None]] = {}
        """The refresh of each cluster that began last."""
        self._unasked: set[str] = set()
        """Clusters whose last refresh has not asked yet."""
        self._topics: dict[str, dict[str, MetadataResponseTopic]] = {name: {} for name in clusters}
        self._told: dict[str, dict[str, tuple[MetadataResponseTopic, MetadataResponseTopic]]] = {
            name: {} for name in clusters
        }
        """What each cluster last told of its topics, and what clients see of it."""
        self._leaderless: set[str] = set()
        """Clusters that are down: their topics are there, without leaders."""
        self._names: dict[UUID, str] = {}
        self._encoded: dict[tuple[int, str], bytes] = {}
        self.cluster_id = cluster_id
        self.changes = {name: self._changes(name) for name in clusters}
        """What becomes of ids and names on the way to clients."""
        self.changes_back = {name: self._changes_back(name) for name in clusters}
        for name, cluster in clusters.items():
            self._keep(name, wire.by_name(self._outside(name, cluster.topics)))
            if not cluster.is_up:
                self._lose_leaders(name)

    # What is known

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The name of a topic that is known by this id."""
        return None if topic_id is None else self._names.get(topic_id)

    def owner(self, name: str | None, topic_id: UUID | None = None) -> str | None:
        """Whose a topic is; None for an id that nobody knows."""
        known = name or self.name_of(topic_id)
        return None if known is None else self._routes.topic.of(known)

    def known(self, name: str) -> MetadataResponseTopic | None:
        """What is known of a topic."""
        return self._topics[self._routes.topic.of(name)].get(name)

    def around(self) -> MetadataResponse:
        """An answer to Metadata without topics."""
        return MetadataResponse(
            throttle_time=NO_TIME,
            brokers=tuple(self._brokers()),
            cluster_id=self.cluster_id,
            controller_id=BrokerId(self.controller()),
            topics=(),
            error_code=ErrorCode.none,
        )

    def controller(self) -> int:
        """The node that clients take for the controller: one that is there."""
        order = [self._routes.primary, *self._clusters]
        for name in order:
            cluster = self._clusters[name]
            if cluster.brokers:
                node = cluster.controller if cluster.controller in cluster.brokers else next(iter(cluster.brokers))
                return self._blocks.outside(name, node)
        return ANY

    def all(self) -> list[MetadataResponseTopic]:
        """Every topic that clients see."""
        return [topic for topics in self._topics.values() for topic in topics.values()]

    def encoded(self, topic: MetadataResponseTopic, version: int) -> bytes:
        """A topic as bytes, made once for one that is known."""
        name = str(topic.name)
        if self.known(name) is not topic:
            return wire.encoded(topic, version)
        found = self._encoded.get((version, name))
        if found is None:
            found = self._encoded[version, name] = wire.encoded(topic, version)
        return found

    # How it is kept true

    def mark_stale(self, cluster: str) -> None:
        """What is known of a cluster is no longer so."""
        self._stale.add(cluster)

    async def meet(self, topic_ids: Iterable[UUID | None]) -> None:
        """Ask for topics whose ids are not known: a client may have them from another process, since a moment ago."""
        if any(topic_id is not None and topic_id not in self._names for topic_id in topic_ids):
            self._stale.update(self._clusters)
            await self.fresh(self._clusters)

    async def fresh(self, clusters: Collection[str]) -> None:
        """Wait until what is known of clusters is fresh: a moment at most, and not at all for one that is down."""
        now = self._loop.time()
        due = [name for name in clusters if name in self._stale or now - self._asked[name] > FRESH_S]
        for name in clusters:
            # Whoever asked it anything may have found it down, since it was last asked for its topics.
            if not self._clusters[name].is_up:
                self._lose_leaders(name)
        tasks = {name: self._begin_to_refresh(name) for name in due}
        waited_for = [task for name, task in tasks.items() if self._clusters[name].is_up]
        if waited_for:
            await asyncio.wait(waited_for, timeout=PATIENCE_S)

    async def refresh(self, cluster: str) -> None:
        """Ask a cluster for all its topics; who asks while somebody does waits for the same answer."""
        await asyncio.shield(self._begin_to_refresh(cluster))

    def _begin_to_refresh(self, cluster: str) -> "asyncio.Task[None]":
        """The refresh that is under way, or the next one: what the cluster answers may be older than `mark_stale`."""
        latest = self._refreshing.get(cluster)
        if latest is not None and (cluster in self._unasked or cluster not in self._stale):
            return latest
        self._unasked.add(cluster)
        task = self._refreshing[cluster] = asyncio.create_task(self._refresh(cluster, latest))
        task.add_done_callback(lambda _: self._forget(cluster, task))
        return task

    def _forget(self, cluster: str, task: "asyncio.Task[None]") -> None:
        if self._refreshing.get(cluster) is task:
            del self._refreshing[cluster]
            self._unasked.discard(cluster)

    async def ask_owner(self, cluster: str, names: Iterable[str], *, create: bool) -> dict[str, MetadataResponseTopic]:
        """Topics that are not known, asked of their owner, who may create them."""
        request = metadata_request((self._routes.inside(cluster, name) for name in names), create=create)
        asked = self._clusters[cluster]
        answer = await asked.ask(request, within=asked.limits.health_s)
        found = wire.by_name(retyped(answer.topics[i], self.changes[cluster]) for i in range(len(answer.topics)))
        there = {name: topic for name, topic in found.items() if topic.error_code is ErrorCode.none}
        if there:
            # Who is shown a topic by its name finds it in the next list of all topics too.
            self._keep(cluster, {**self._topics[cluster], **there})
            self.mark_stale(cluster)
        return found

    async def _refresh(self, name: str, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        if name in self._stale:
            await asyncio.sleep(self._asked[name] + AT_MOST_EVERY_S - self._loop.time())
        cluster = self._clusters[name]
        self._unasked.discard(name)
        self._asked[name] = self._loop.time()
        self._stale.discard(name)
        try:
            if not cluster.versions:
                await cluster.learn()
            answer = await cluster.metadata()
        except KafkaError:
            self._stale.add(name)
            if not cluster.is_up:
                self._lose_leaders(name)
            return
        self._leaderless.discard(name)
        self._keep(name, wire.by_name(self._outside(name, answer.topics)))
        self._learned()

    def _lose_leaders(self, name: str) -> None:
        if name not in self._leaderless:
            self._leaderless.add(name)
            self._keep(name, {topic: _leaderless(known) for topic, known in self._topics[name].items()})

    def _outside(self, cluster: str, topics: Iterable[MetadataResponseTopic]) -> Iterator[MetadataResponseTopic]:
        """A cluster's topics as clients see them; one that has not changed is not made anew, which takes long."""
        before, self._told[cluster] = self._told[cluster], {}
        for topic in topics:
            name = str(topic.name)
            if self._routes.shows(cluster, name):
                last = before.get(name)
                seen = last[1] if last is not None and last[0] == topic else retyped(topic, self.changes[cluster])
                self._told[cluster][name] = topic, seen
                yield seen

    def _keep(self, cluster: str, topics: dict[str, MetadataResponseTopic]) -> None:
        before = self._topics[cluster]
        # What has not changed keeps its bytes.
        changed = {
            name for name, topic in topics.items() if before.get(name) is not topic and before.get(name) != topic
        }
        gone = before.keys() - topics.keys()
        if changed or gone:
            # One of the same name that was made anew has another id: nobody may mean it by the old one.
            for name in gone | (changed & before.keys()):
                self._names.pop(before[name].topic_id or NO_ID, None)
            for name in changed:
                known = topics[name].topic_id
                if known is not None:
                    self._names[known] = name
            outdated = changed | gone
            self._encoded = {key: value for key, value in self._encoded.items() if key[1] not in outdated}
        self._topics[cluster] = topics

    def _brokers(self) -> Iterable[MetadataResponseBroker]:
        for name, cluster in self._clusters.items():
            for node, broker in cluster.brokers.items():
                host, port = self._place(name, node)
                yield MetadataResponseBroker(
                    node_id=BrokerId(self._blocks.outside(name, node)), host=host, port=i32(port), rack=broker.rack
                )

    def _changes(self, cluster: str) -> Changes:
        return Changes(
            node=lambda node: BrokerId(self._blocks.outside(cluster, node)),
            topic=lambda name: TopicName(self._routes.outside(cluster, name)),
        )

    def _changes_back(self, cluster: str) -> Changes:
        return Changes(
            node=lambda node: BrokerId(self._blocks.inside(cluster, node)),
            topic=lambda name: TopicName(self._routes.inside(cluster, name)),
        )


def _leaderless(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    lost: dict[str, Any] = {"leader_id": NO_LEADER, "error_code": ErrorCode.leader_not_available}
    return replace(topic, partitions=tuple(replace(partition, **lost) for partition in topic.partitions))
