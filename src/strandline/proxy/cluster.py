"""A cluster behind the proxy: its brokers, what they speak, whether they answer, and a pool to ask them over.

The pool is for what the proxy asks itself. A broker serves a connection one request after the other, so a request that
waits there must hold up nobody else's.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName

from strandline.clock import SystemClock
from strandline.core.breaker import Breaker, State
from strandline.core.common_versions import common_features, common_versions
from strandline.errors import BrokerUnreachable, KafkaError, SameCluster, WrongListener
from strandline.kafka.cluster import host_and_port
from strandline.kafka.connection import Connection, Last
from strandline.kafka.security import Security
from strandline.units import Nanos
from strandline.wire.kafka_frames import answer_type, decode_body

CLIENT_ID = "strandline-proxy"
ANY = -1
MOST_CONNECTIONS = 32
VERSION = "1"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a cluster is waited for, and when nobody waits for it any more."""

    connect_s: float = 5.0
    """For a connection, and once more for signing in over it."""
    request_s: float = 30.0
    """For the answer to a request of the proxy's own, and as long again for a connection that is free."""
    answer_s: float = 120.0
    """For the answer to a request of a client's that is passed on."""
    health_s: float = 3.0
    """For what topics there are, by which it is seen whether a cluster is up; connecting included."""
    failures: int = 3
    """So many in a row, and a cluster is taken for down."""
    pause_s: float = 2.0
    """Then it is not asked for so long."""


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker listens."""

    host: str
    port: int
    rack: str | None


def metadata_request(topics: Iterable[str] | None, *, create: bool, operations: bool = False) -> MetadataRequest:
    """A request for topics, or for all, perhaps with what may be done to them."""
    named = None if topics is None else tuple(MetadataRequestTopic(topic_id=None, name=TopicName(t)) for t in topics)
    return MetadataRequest(
        topics=named, allow_auto_topic_creation=create, include_topic_authorized_operations=operations
    )


class Cluster:
    """One of several."""

    def __init__(
        self,
        name: str,
        settings: Mapping[str, str],
        limits: Limits = DEFAULTS,
        *,
        clock: SystemClock | None = None,
    ) -> None:
        self.name = name
        self.address = settings["bootstrap.servers"]
        self.security = Security.parse(settings)
        self.brokers: dict[int, Broker] = {}
        self.controller = ANY
        self.cluster_id: str | None = None
        """What it was formatted with; None until it has told."""
        self.topics: tuple[Any, ...] = ()
        """All that it last told of."""
        self.versions: dict[int, tuple[int, int]] = {}
        """What every one of its brokers that has told speaks, by API."""
        self._spoken: dict[int, dict[int, tuple[int, int]]] = {}
        """What each broker has told that it speaks."""
        self.supported: dict[str, tuple[int, int]] = {}
        self.finalized: dict[str, tuple[int, int]] = {}
        self.features_epoch = -1
        """Grows whenever a feature is at another level."""
        self.limits = limits
        self.breaker = _breaker(limits)
        self._clock = clock or SystemClock()
        self._seeds = [host_and_port(place) for place in self.address.split(",")]
        self._idle: dict[int, list[Connection]] = defaultdict(list)
        self._failed: tuple[str, int] | None = None
        """Where a broker last did not answer who asked any: the next one is tried before it."""
        self._rooms: dict[int, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MOST_CONNECTIONS))
        """For each broker: who waits for one that does not answer must not hold up those who ask another."""
        self._waits: set[asyncio.Timeout] = set()
        self._metadata: Last[Any] = Last()
        self._is_closed = False

    @property
    def is_up(self) -> bool:
        """Whether it answered when it was last asked."""
        return self.breaker.state is State.CLOSED and bool(self.versions)

    def where(self, node: int) -> tuple[str, int]:
        """Host and port of one of its brokers, or of any."""
        if node == ANY and self.brokers:
            node = next(iter(self.brokers))
        if node == ANY:
            return self._seeds[0]
        if node not in self.brokers:
            raise BrokerUnreachable(f"{self.name} broker {node}", "it has left the cluster")
        return self.brokers[node].host, self.brokers[node].port

    def renew(self, settings: Mapping[str, str]) -> None:
        """Read the files again that the settings name: certificates end."""
        self.security = Security.parse(settings)

    def limit(self, limits: Limits) -> None:
        """Go on with other limits. One that was down is tried again at once."""
        if limits != self.limits:
            self.limits, self.breaker = limits, _breaker(limits)

    def remember(self, before: "Cluster") -> None:
        """What a cluster of this name was last known to have stands until this one tells."""
        self.topics = before.topics

    @property
    def told(self) -> bytes:
        """What it last told of its topics, as it came; another object when it is something else."""
        return self._metadata.body

    def recall(self, told: bytes) -> None:
        """The same with what it last told another process."""
        self.topics = decode_body(memoryview(told), MetadataRequest.__api_key__, MetadataRequest.__version__).topics

    async def ask(
        self,
        request: Any,
        node: int = ANY,
        *,
        within: float | None = None,
        last: Last[Any] | None = None,
        is_first: bool = False,
    ) -> Any:
        """Ask one of its brokers, or any, and wait for the answer. While it is known down, a KafkaError at once.

        `is_first`: before all that wait for a connection, as the health check has to be.
        """
        if not self.breaker.lets(self._clock.monotonic()):
            raise self._down()
        # Nothing is kept for a broker that there is not: clients may name any.
        self.where(node)
        limit = self.limits.request_s if within is None else within
        if is_first:
            return await self._ask(request, node, limit, last)
        try:
            async with self._within(limit):
                await self._rooms[node].acquire()
        except TimeoutError:
            if self.breaker.state is State.OPEN:
                raise self._down() from None
            raise BrokerUnreachable(f"cluster {self.name}", f"no free connection within {limit:g} s") from None
        try:
            return await self._ask(request, node, limit, last)
        finally:
            self._rooms[node].release()

    def _down(self) -> BrokerUnreachable:
        return BrokerUnreachable(f"cluster {self.name}", "it does not answer")

    async def _ask(self, request: Any, node: int, limit: float, last: Last[Any] | None) -> Any:
        connection, answer = await self._answer(request, node, limit, last)
        if self.breaker.state is not State.CLOSED:
            log.warning("cluster %s answers again", self.name)
        self.breaker.succeeded()
        if self._is_closed:
            connection.close()
        else:
            self._idle[node].append(connection)
        return answer

    async def _answer(self, request: Any, node: int, limit: float, last: Last[Any] | None) -> tuple[Connection, Any]:
        connection: Connection | None = None
        kind = answer_type(request.__api_key__, request.__version__)
        try:
            async with self._within(limit):
                connection = await self._connect(node)
                return connection, await connection.ask(request, kind, within=limit, last=last)
        except TimeoutError:
            late = f"no answer to {type(request).__name__} within {limit:g} s"
            problem = self._down() if self.breaker.state is State.OPEN else BrokerUnreachable(self.address, late)
            self._note(node, connection, problem)
            raise problem from None
        except KafkaError as error:
            self._note(node, connection, error)
            raise

    def _note(self, node: int, connection: Connection | None, error: KafkaError) -> None:
        """A request has failed. One broker that is gone does not make the cluster so: that takes those who ask any."""
        if connection is not None:
            self._forget(connection.address)
        if node != ANY:
            return
        was = self.breaker.state
        self.breaker.failed(self._clock.monotonic())
        if (was, self.breaker.state) == (State.CLOSED, State.OPEN):
            log.warning("cluster %s does not answer: %s", self.name, error)
            # Whoever waits for it has waited long enough: a client's heartbeat may be behind.
            for wait in self._waits:
                if not wait.expired():
                    wait.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def _within(self, limit: float) -> AsyncIterator[None]:
        """A TimeoutError after so long, or when the cluster is found down."""
        async with asyncio.timeout(limit) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    def _forget(self, address: str) -> None:
        """What is kept of connections to where one has failed is not used again, which would fail as often."""
        for node, kept in self._idle.items():
            for connection in kept:
                if connection.address == address:
                    connection.close()
            self._idle[node] = [connection for connection in kept if connection.is_usable]
        self._failed = host_and_port(address)

    async def learn(self) -> None:
        """Ask what it speaks: each of its brokers, once they are known.

        While a cluster is upgraded, or an upgrade is undone, one of them speaks what another does not.
        """
        told = await self._told_versions(list(self.brokers)) or await self._told_versions([ANY])
        if not told:
            raise self._down()
        # One that does not answer now speaks what it did, for all that is known.
        self._spoken = {node: ranges for node, ranges in self._spoken.items() if node in self.brokers}
        for node, answer in told.items():
            self._spoken[node] = {int(k.api_key): (int(k.min_version), int(k.max_version)) for k in answer.api_keys}
        first, *others = self._spoken.values()
        self.versions = common_versions(others, first)
        self.supported = common_features(
            {f.name: (int(f.min_version), int(f.max_version)) for f in answer.supported_features}
            for answer in told.values()
        )
        latest = max(told.values(), key=lambda answer: int(answer.finalized_features_epoch))
        self.features_epoch = int(latest.finalized_features_epoch)
        self.finalized = {
            f.name: (int(f.min_version_level), int(f.max_version_level)) for f in latest.finalized_features
        }

    async def _told_versions(self, nodes: list[int]) -> dict[int, Any]:
        """The answers of those who answer."""
        request = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version=VERSION)
        asking = [self.ask(request, node, within=self.limits.health_s, is_first=True) for node in nodes]
        answers = await asyncio.gather(*map(_answer_or_none, asking))
        return {node: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None}

    async def metadata(self) -> Any:
        """All its topics, and who its brokers are now; the same as before, as long as nothing in it is another."""
        request = metadata_request(None, create=False)
        answer = await self.ask(request, within=self.limits.health_s, last=self._metadata, is_first=True)
        self.brokers = {int(b.node_id): Broker(b.host, int(b.port), b.rack) for b in answer.brokers}
        self.controller = int(answer.controller_id)
        self.cluster_id = answer.cluster_id
        self.topics = answer.topics
        return answer

    def close(self) -> None:
        """Close the pool; who still asks has a connection of its own for it."""
        self._is_closed = True
        for kept in self._idle.values():
            for connection in kept:
                connection.close()
        self._idle.clear()

    async def _connect(self, node: int) -> Connection:
        kept = self._idle[node]
        while kept:
            connection = kept.pop()
            if connection.is_usable:
                return connection
        if node != ANY:
            return await self._open(*self.where(node))
        places = dict.fromkeys([*((broker.host, broker.port) for broker in self.brokers.values()), *self._seeds])
        failure: BrokerUnreachable | None = None
        for place in sorted(places, key=lambda one: one == self._failed):
            try:
                return await self._open(*place)
            except BrokerUnreachable as error:
                self._failed, failure = place, error
            except asyncio.CancelledError:
                # There is no time for the others; the next who asks begins with them.
                self._failed = place
                raise
        if isinstance(failure, WrongListener):
            raise failure
        raise BrokerUnreachable(self.address, f"no broker answers ({failure})")

    async def _open(self, host: str, port: int) -> Connection:
        return await Connection.open(host, port, self.security, client_id=CLIENT_ID, within=self.limits.connect_s)


async def _answer_or_none(asking: Awaitable[Any]) -> Any | None:
    try:
        return await asking
    except KafkaError:
        return None


def twins(clusters: Iterable[Cluster]) -> SameCluster | None:
    """What is wrong where two are one, as far as they have told who they are."""
    names: dict[str, list[str]] = defaultdict(list)
    for cluster in clusters:
        if cluster.cluster_id:
            names[cluster.cluster_id].append(cluster.name)
    return next((SameCluster(known, which) for which, known in names.items() if len(known) > 1), None)


def _breaker(limits: Limits) -> Breaker:
    return Breaker(limits.failures, Nanos(int(limits.pause_s * 1e9)))
