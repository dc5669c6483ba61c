"""A cluster as a reader sees it: who leads which partition, which offsets there are, and record batches as they lie.

Everything is asked of the leader of the partition in question. A leader that has moved, is starting or is gone is
looked for again, for as long as `patience`; what a broker refuses for good is raised at once.
"""

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v13.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.fetch.v13.response import FetchResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.metadata.v11.request import MetadataRequest, MetadataRequestTopic
from kio.schema.metadata.v11.response import MetadataResponse, MetadataResponseTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from strandline.clock import SystemClock
from strandline.config import without_user
from strandline.core.retry import Backoff, Failure, GiveUp, Policy, Within, decide
from strandline.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClusterClosed,
    KafkaError,
    Moved,
    NoBroker,
    OptionError,
    TopicReplaced,
    UnknownTopic,
    WrongListener,
    check_type,
    did_you_mean,
)
from strandline.kafka import security
from strandline.kafka.connection import Admit, Connection
from strandline.kafka.partition import Partition
from strandline.units import Nanos, nanos

if TYPE_CHECKING:
    from uuid import UUID

CONNECT_WITHIN = 10.0
ANSWER_WITHIN = 10.0
PATIENCE = timedelta(seconds=60)
BACKOFF = Backoff(first=Nanos(20_000_000), ceiling=Nanos(1_000_000_000))
AGAIN = Policy(backoff={Failure.TRANSIENT: BACKOFF}, until=Within(nanos(PATIENCE)))

NAMES = security.NAMES | {"bootstrap.servers", "client.id", "group.id"}
"""The settings that have a meaning here; librdkafka's names."""

LATEST = -1
EARLIEST = -2
HIGHEST_TIME = -3
DEFAULT_PORT = 9092
PORT = re.compile(r"[0-9]{1,5}")
HOST = re.compile(r"(?=.*\w)[\w.:%-]+")
ANY_NODE = -1
NO_OFFSET = -1
# Beyond all records: whoever fetches from here gets none.
NO_RECORD = 2**63 - 1

# What a broker says when it does not lead the partition, or does not lead it yet.
MOVED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.broker_not_available,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
    }
)

# What a broker says that has the partition, to who fetches from beyond its end.
KNOWN = frozenset({ErrorCode.none, ErrorCode.offset_out_of_range})

T = TypeVar("T")


class Isolation(Enum):
    """Which records of transactions are read."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Found:
    """An offset, and the time of the record there where it was found by time."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought of one partition."""

    partition: Partition
    asked: int
    error: ErrorCode
    records: bytes
    aborted: tuple[tuple[int, int], ...]
    """Producer and first offset of each aborted transaction in these records."""


ISOLATIONS = {isolation.name.lower(): isolation for isolation in Isolation}
"""By the name that people write."""


async def again(act: Callable[[], Awaitable[T]], patience: timedelta = PATIENCE) -> T:
    """Do it until it works, for as long as `patience` while the failure is one that passes."""
    policy = replace(AGAIN, until=Within(nanos(patience)))
    clock = SystemClock()
    begin, attempt = clock.monotonic(), 1
    while True:
        try:
            return await act()
        except (WrongListener, ClusterClosed):
            raise
        except (BrokerUnreachable, Moved):
            elapsed = Nanos(clock.monotonic() - begin)
            draw = random.random()  # noqa: S311  (spreads retries, keeps no secret)
            answer = decide(policy, Failure.TRANSIENT, attempt=attempt, elapsed=elapsed, draw=draw)
            if isinstance(answer, GiveUp):
                raise
            await asyncio.sleep(answer.delay / 1e9)
            attempt += 1


class Cluster:
    """Opens nothing until it is asked something."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        servers = settings.get("bootstrap.servers") or ""
        check_type("'bootstrap.servers'", servers, str)
        self.address = str(servers)
        self._seeds = [host_and_port(part) for part in self.address.split(",") if part.strip()]
        if not self._seeds:
            raise OptionError("'bootstrap.servers' is missing: host:port of one or more brokers, commas between")
        self._security = security.Security.parse(settings)
        self._client_id = str(settings.get("client.id", "strandline"))
        self.patience = PATIENCE
        """How long a question is asked again when it is not answered."""
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Partition, tuple[int, int]] = {}
        self._topics: list[str] = []
        self._ids: dict[str, UUID | None] = {}
        """By topic. One that is deleted and created anew has another, and its offsets are those of another log."""
        # Reading has a connection of its own: a fetch may wait for records, and no question waits behind it.
        self._asking: dict[int, Connection] = {}
        self._reading: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By node: one that does not answer keeps nobody from the others."""
        self._is_closed = False

    async def partitions(self, topics: Collection[str]) -> list[Partition]:
        """Every partition of the topics, each with a leader."""
        self._topics = sorted({*self._topics, *topics})
        await again(self.refresh, self.patience)
        return sorted(partition for partition in self._leaders if partition.topic in topics)

    def leader(self, partition: Partition) -> int:
        """The node that leads a partition, as far as we know."""
        return self._known(partition)[0]

    def leader_epoch(self, partition: Partition) -> int:
        """How often a partition's leader has changed, as far as we know."""
        return self._known(partition)[1]

    def _known(self, partition: Partition) -> tuple[int, int]:
        if partition not in self._leaders:
            raise Moved(partition, "it is not known yet who leads it")
        return self._leaders[partition]

    @property
    def nodes(self) -> Iterable[int]:
        """The nodes that lead something of ours."""
        return {leader for leader, _ in self._leaders.values()}

    async def refresh(self) -> None:
        """Ask again who leads what; raises TopicReplaced."""
        request = MetadataRequest(
            topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(topic)) for topic in self._topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        connection = await self._connect_to_any()
        answer = await connection.ask(request, MetadataResponse, within=ANSWER_WITHIN)
        self._brokers = {int(b.node_id): (b.host, int(b.port)) for b in answer.brokers}
        # All that is known is kept: what one topic lacks keeps nobody from the others.
        troubles = [trouble for topic in answer.topics if (trouble := self._learn(topic)) is not None]
        if troubles:
            raise next((trouble for trouble in troubles if not isinstance(trouble, Moved)), troubles[0])

    def _learn(self, topic: MetadataResponseTopic) -> KafkaError | None:
        """Note who leads the partitions of a topic; what is wrong with it, where something is."""
        if topic.error_code in {ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed}:
            return UnknownTopic(topic.name, self.address)
        if topic.error_code is not ErrorCode.none:
            return _trouble(topic.error_code, topic.name)
        if self._ids.setdefault(topic.name, topic.topic_id) != topic.topic_id:
            return TopicReplaced(topic.name)
        trouble = None
        for p in topic.partitions:
            partition = Partition(topic.name, int(p.partition_index))
            if p.leader_id < 0:
                trouble = trouble or Moved(partition, p.error_code.name)
            else:
                self._leaders[partition] = int(p.leader_id), int(p.leader_epoch)
        return trouble

    def topic_id(self, topic: str) -> str:
        """What tells this topic from one of the same name before or after it."""
        return str(self._ids[topic])

    async def epoch_end(self, partition: Partition, epoch: int) -> int | None:
        """Where the records end that leaders up to an epoch have written; None where nobody knows of it any more."""
        return await self._ask_leaders(lambda: self._epoch_end_of(self.leader(partition), partition, epoch))

    async def _epoch_end_of(self, node: int, partition: Partition, epoch: int) -> int | None:
        asked = OffsetForLeaderPartition(
            partition=i32(partition.number),
            current_leader_epoch=i32(self._leaders[partition][1]),
            leader_epoch=i32(epoch),
        )
        topics = (OffsetForLeaderTopic(topic=TopicName(partition.topic), partitions=(asked,)),)
        request = OffsetForLeaderEpochRequest(replica_id=BrokerId(-1), topics=topics)
        connection = await self._connect(node, self._asking)
        answer = await connection.ask(request, OffsetForLeaderEpochResponse, within=ANSWER_WITHIN)
        (found,) = (found for topic in answer.topics for found in topic.partitions)
        if found.error_code is not ErrorCode.none:
            raise _trouble(found.error_code, partition)
        return None if found.end_offset == NO_OFFSET else int(found.end_offset)

    async def offsets(self, wanted: Mapping[Partition, int], isolation: Isolation) -> dict[Partition, Found]:
        """The offset for a time in milliseconds, or for EARLIEST, LATEST or HIGHEST_TIME, of each partition.

        For a time it is the first whose record, or one before it, has that time or a later one; LATEST is the end up
        to which the isolation allows to read. Where no record is so late, the offset is -1.
        """
        found: dict[Partition, Found] = {}

        async def ask() -> None:
            missing = {partition: time for partition, time in wanted.items() if partition not in found}
            for node, part in self._by_leader(missing).items():
                found.update(await self._offsets_of(node, part, isolation))

        await self._ask_leaders(ask)
        return found

    async def _offsets_of(
        self, node: int, wanted: Mapping[Partition, int], isolation: Isolation
    ) -> dict[Partition, Found]:
        topics = tuple(
            ListOffsetsTopic(
                name=TopicName(topic),
                partitions=tuple(
                    ListOffsetsPartition(
                        partition_index=i32(p.number),
                        current_leader_epoch=i32(self._leaders[p][1]),
                        timestamp=i64(wanted[p]),
                    )
                    for p in partitions
                ),
            )
            for topic, partitions in _by_topic(wanted).items()
        )
        request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(isolation.value), topics=topics)
        connection = await self._connect(node, self._asking)
        answer = await connection.ask(request, ListOffsetsResponse, within=ANSWER_WITHIN)
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                partition = Partition(topic.name, int(p.partition_index))
                if p.error_code is not ErrorCode.none:
                    raise _trouble(p.error_code, partition)
                found[partition] = Found(int(p.offset), int(p.timestamp))
        return found

    async def fetch(
        self,
        node: int,
        positions: Mapping[Partition, int],
        isolation: Isolation,
        *,
        max_bytes: int,
        partition_bytes: int,
        max_wait: timedelta,
        admit: Admit | None = None,
        aside: bool = False,
    ) -> list[Fetched]:
        """Whole record batches from the given positions on, of partitions that one node leads, the first ones first.

        At least one batch comes where there is one, however large. Waits for the first record, `max_wait` at most.
        What comes is told to `admit`, and waits for it. `aside`: without waiting for those that are fetched already.
        """
        topics = tuple(
            FetchTopic(
                topic_id=self._ids[topic],
                partitions=tuple(
                    FetchPartition(
                        partition=i32(p.number),
                        current_leader_epoch=i32(self._leaders[p][1]),
                        fetch_offset=i64(positions[p]),
                        partition_max_bytes=i32(partition_bytes),
                    )
                    for p in partitions
                ),
            )
            # In their order, though a topic may come more than once by that.
            for topic, partitions in groupby(positions, key=lambda partition: partition.topic)
        )
        request = FetchRequest(
            max_wait=i32Timedelta.parse(max_wait),
            min_bytes=i32(1),
            max_bytes=i32(max_bytes),
            isolation_level=i8(isolation.value),
            topics=topics,
            forgotten_topics_data=(),
        )
        connection = await self._connect(node, self._asking if aside else self._reading)
        within = ANSWER_WITHIN + max_wait.total_seconds()
        answer = await connection.ask(request, FetchResponse, within=within, admit=admit)
        if answer.error_code is not ErrorCode.none:
            raise BrokerRefused(answer.error_code.name, connection.address)
        names = {self._ids[partition.topic]: partition.topic for partition in positions}
        return [
            Fetched(
                partition := Partition(names[topic.topic_id], int(p.partition_index)),
                positions[partition],
                p.error_code,
                p.records or b"",
                tuple((int(a.producer_id), int(a.first_offset)) for a in p.aborted_transactions or ()),
            )
            for topic in answer.responses
            for p in topic.partitions
        ]

    async def read(self, partition: Partition, position: int, isolation: Isolation, *, max_bytes: int) -> Fetched:
        """Whole record batches of one partition from a position on, where there are some, from whoever leads it."""

        async def ask() -> Fetched:
            (fetched,) = await self.fetch(
                self.leader(partition),
                {partition: position},
                isolation,
                max_bytes=max_bytes,
                partition_bytes=max_bytes,
                max_wait=timedelta(0),
            )
            if fetched.error is not ErrorCode.none:
                raise _trouble(fetched.error, partition)
            if not fetched.records:
                raise Moved(partition, "its leader does not have the records yet")
            return fetched

        return await self._ask_leaders(ask)

    async def confirm(self, partitions: Collection[Partition]) -> None:
        """See that partitions are still those of the topics that we know; raises TopicReplaced.

        Only records are asked for by a topic's id. All else is asked for by its name, and what was answered so is known
        to be of this topic, and of none made since, only once this has been seen after it.
        """

        async def ask() -> None:
            for node, part in self._by_leader(dict.fromkeys(partitions, NO_RECORD)).items():
                for fetched in await self.fetch(
                    node,
                    part,
                    Isolation.READ_UNCOMMITTED,
                    max_bytes=1,
                    partition_bytes=1,
                    max_wait=timedelta(0),
                    aside=True,
                ):
                    if fetched.error not in KNOWN:
                        raise _trouble(fetched.error, fetched.partition)

        await self._ask_leaders(ask)

    async def _ask_leaders(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until it is answered; who leads what is looked up again whenever it is not."""

        async def asked() -> T:
            try:
                return await ask()
            except (BrokerUnreachable, Moved):
                await self.refresh()
                raise

        return await again(asked, self.patience)

    def close(self) -> None:
        """Close every connection, for good."""
        self._is_closed = True
        for connection in (*self._asking.values(), *self._reading.values()):
            connection.close()
        self._asking.clear()
        self._reading.clear()

    async def _connect(self, node: int, kept: dict[int, Connection]) -> Connection:
        connection = kept.get(node)
        if connection is not None and connection.is_usable:
            return connection
        async with self._opening[node]:
            connection = kept.get(node)
            if connection is None or not connection.is_usable:
                if node not in self._brokers:
                    raise Moved(f"node {node}", "it has left the cluster")
                host, port = self._brokers[node]
                connection = kept[node] = await self._open(host, port)
            return connection

    async def _connect_to_any(self) -> Connection:
        async with self._opening[ANY_NODE]:
            usable = next((connection for connection in self._asking.values() if connection.is_usable), None)
            return usable or await self._open_any()

    async def _open_any(self) -> Connection:
        places = [*self._brokers.values(), *self._seeds]
        failure: BrokerUnreachable | None = None
        for host, port in dict.fromkeys(places):
            try:
                connection = self._asking[ANY_NODE] = await self._open(host, port)
            except BrokerUnreachable as error:
                failure = error
            else:
                return connection
        if isinstance(failure, WrongListener | ClusterClosed):
            raise failure
        raise NoBroker(self.address, failure) from failure

    async def _open(self, host: str, port: int) -> Connection:
        connection = await Connection.open(host, port, self._security, client_id=self._client_id, within=CONNECT_WITHIN)
        if self._is_closed:
            connection.close()
            raise ClusterClosed(self.address)
        return connection

    def _by_leader(self, partitions: Mapping[Partition, int]) -> dict[int, dict[Partition, int]]:
        by_node: dict[int, dict[Partition, int]] = defaultdict(dict)
        for partition, value in partitions.items():
            by_node[self.leader(partition)][partition] = value
        return by_node


def refuse_unused(settings: Iterable[str]) -> None:
    """Refuse settings that reading has no use for. Those of a group are checked by librdkafka, which takes them all."""
    for name in settings:
        if name not in NAMES:
            raise OptionError(f"setting '{name}' is unknown, or is for groups only; {did_you_mean(name, NAMES)}")


def _by_topic(partitions: Iterable[Partition]) -> dict[str, list[Partition]]:
    by_topic: dict[str, list[Partition]] = defaultdict(list)
    for partition in partitions:
        by_topic[partition.topic].append(partition)
    return by_topic


def _trouble(code: ErrorCode, where: object) -> KafkaError:
    return Moved(where, code.name) if code in MOVED else BrokerRefused(code.name, where)


def host_and_port(place: str) -> tuple[str, int]:
    """Host and port of a broker as `bootstrap.servers` has it, also `[::1]:9092` and a host alone."""
    protocol, _, named = place.strip().rpartition("://")
    host, colon, port = named.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = named, str(DEFAULT_PORT)
    # A broker writes its own address with one; which it is says nothing here.
    is_kafka = not protocol or protocol.lower() in security.PROTOCOLS
    if not is_kafka or not PORT.fullmatch(port) or not 0 < int(port) < 65536 or not HOST.fullmatch(host.strip("[]")):
        raise OptionError(f"'bootstrap.servers': '{without_user(place.strip())}' is not host:port")
    return host.strip("[]"), int(port)
