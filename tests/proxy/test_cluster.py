"""How a cluster is asked: it is read anew when it tells something else; no broker, and no queue, makes it down."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i64

from strandline.errors import KafkaError
from strandline.kafka.connection import SPOKEN
from strandline.proxy.cluster import ANY, MOST_CONNECTIONS, Broker, Cluster, Limits, metadata_request
from strandline.stack.kafka import KafkaCluster
from strandline.stack.ports import LOOPBACK
from strandline.wire.kafka_frames import API_VERSIONS, answer_type, encode_answer
from strandline.wire.refusal import NO_TIME, item_type
from tests.proxy.support import PATIENT, create
from tests.support import TIMEOUT

TOPIC = "told-anew"
FETCH = 1
FEATURE = "transaction.version"


def test_metadata_is_read_anew_only_when_something_in_it_is_another(
    clusters: tuple[KafkaCluster, KafkaCluster],
) -> None:
    asyncio.run(told(clusters[0]))


async def told(kafka: KafkaCluster) -> None:
    cluster = Cluster("east", {"bootstrap.servers": kafka.address}, PATIENT)
    try:

        async def is_the_same() -> bool:
            return await cluster.metadata() is await cluster.metadata()

        async def has_the_topic() -> bool:
            return TOPIC in {topic.name for topic in (await cluster.metadata()).topics}

        # What other tests have changed may still be on its way through the cluster.
        await until(is_the_same)
        assert not await has_the_topic()
        await asyncio.to_thread(create, kafka.settings(), {TOPIC: 1})
        await until(has_the_topic)
        await until(is_the_same)
        assert await has_the_topic()
    finally:
        cluster.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await holds():
            await asyncio.sleep(0.02)


def test_a_broker_that_is_gone_does_not_make_its_cluster_so(clusters: tuple[KafkaCluster, KafkaCluster]) -> None:
    asyncio.run(without_one(clusters[0]))


async def without_one(kafka: KafkaCluster) -> None:
    cluster = Cluster("east", {"bootstrap.servers": kafka.address}, PATIENT)
    try:
        await cluster.metadata()
        await cluster.learn()
        with closing(socket.socket()) as refuses:
            refuses.bind((LOOPBACK, 0))
            cluster.brokers = {7: Broker(LOOPBACK, refuses.getsockname()[1], None), **cluster.brokers}
            for _ in range(2 * cluster.limits.failures):
                with pytest.raises(KafkaError):
                    await cluster.ask(metadata_request(None, create=False), 7)
            assert cluster.is_up
            # Nor is any other asked in vain because it stands first in the list.
            cluster.close()
            await cluster.metadata()
        assert cluster.is_up
        assert cluster.cluster_id == kafka.cluster_id
    finally:
        cluster.close()


def test_nobody_waits_longer_than_said_for_a_cluster_that_is_frozen_and_the_health_check_for_nobody() -> None:
    asyncio.run(asyncio.wait_for(frozen(), TIMEOUT))


async def frozen() -> None:
    # Connections are taken by the kernel, and nobody answers over them.
    with socket.create_server((LOOPBACK, 0), backlog=1000) as silent:
        host, port = silent.getsockname()
        limits = Limits(connect_s=5000, request_s=5000, health_s=0.1, failures=1000)
        cluster = Cluster("west", {"bootstrap.servers": f"{host}:{port}"}, limits)
        request = metadata_request(None, create=False)
        asking = [asyncio.create_task(cluster.ask(request)) for _ in range(3 * MOST_CONNECTIONS)]
        await until_all_wait(cluster)
        with pytest.raises(KafkaError, match=r"within 0\.1 s"):
            await cluster.metadata()
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        # With a limit for everybody, everybody is let go: who waits for an answer, and who for a connection.
        cluster.limit(replace(limits, request_s=1))
        failures = await asyncio.gather(
            *(cluster.ask(request) for _ in range(3 * MOST_CONNECTIONS)), return_exceptions=True
        )
        assert all(isinstance(failure, KafkaError) for failure in failures)
        assert sum("no free connection within 1 s" in str(failure) for failure in failures) >= MOST_CONNECTIONS
        # When it is found down, nobody waits for it any more, neither for a connection nor for an answer.
        cluster.limit(Limits(connect_s=5000, request_s=5000, health_s=0.1, failures=1, pause_s=5000))
        asking = [asyncio.create_task(cluster.ask(request)) for _ in range(2 * MOST_CONNECTIONS)]
        await until_all_wait(cluster)
        with pytest.raises(KafkaError):
            await cluster.metadata()
        failures = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(failure, KafkaError) for failure in failures)
        cluster.close()


async def until_all_wait(cluster: Cluster) -> None:
    """Until every connection that there may be is in use."""
    while not cluster._rooms[ANY].locked():
        await asyncio.sleep(0)


def test_who_waits_for_one_broker_holds_up_nobody_who_asks_another(
    clusters: tuple[KafkaCluster, KafkaCluster],
) -> None:
    asyncio.run(asyncio.wait_for(beside_a_silent_one(clusters[0]), TIMEOUT))


async def beside_a_silent_one(kafka: KafkaCluster) -> None:
    with socket.create_server((LOOPBACK, 0), backlog=1000) as silent:
        cluster = Cluster("east", {"bootstrap.servers": kafka.address}, replace(PATIENT, request_s=5000))
        await cluster.metadata()
        cluster.brokers[7] = Broker(LOOPBACK, silent.getsockname()[1], None)
        request = metadata_request(None, create=False)
        waiting = [asyncio.create_task(cluster.ask(request, 7)) for _ in range(2 * MOST_CONNECTIONS)]
        while not cluster._rooms[7].locked():
            await asyncio.sleep(0)
        assert (await cluster.ask(request)).cluster_id == kafka.cluster_id
        assert (await cluster.ask(request, 1)).cluster_id == kafka.cluster_id
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        cluster.close()


def test_nothing_is_kept_for_brokers_that_there_are_not_nor_once_a_cluster_is_gone(
    clusters: tuple[KafkaCluster, KafkaCluster],
) -> None:
    asyncio.run(asyncio.wait_for(nothing_kept(clusters[0]), TIMEOUT))


async def nothing_kept(kafka: KafkaCluster) -> None:
    cluster = Cluster("east", {"bootstrap.servers": kafka.address}, PATIENT)
    request = metadata_request(None, create=False)
    await cluster.metadata()
    assert len(cluster._idle[ANY]) == 1
    for node in range(2, 1000):
        # As many as somebody names who asks for the configuration of brokers.
        with pytest.raises(KafkaError, match="it has left the cluster"):
            await cluster.ask(request, node)
    assert cluster._idle.keys() | cluster._rooms.keys() <= {ANY}
    # Who still asks when the file has another in its place leaves no connection behind.
    asking = asyncio.create_task(cluster.ask(request))
    while cluster._idle[ANY]:
        await asyncio.sleep(0)
    cluster.close()
    assert (await asking).cluster_id == kafka.cluster_id
    assert not any(cluster._idle.values())


class OfAVersion:
    """A broker that tells what it speaks, and no more: there is no old one at hand for a cluster of two versions."""

    def __init__(self, highest: int, level: int) -> None:
        self.highest, self.level = highest, level

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                writer.write(encode_answer(self._versions(request[3]), int.from_bytes(request[4:8], "big")))
        writer.close()

    def _versions(self, version: int) -> Any:
        kind = answer_type(API_VERSIONS, version)
        key = item_type(kind, "api_keys")
        highest = {kind.__api_key__: 99 for kind in SPOKEN} | {FETCH: self.highest}
        keys = [key(api_key=i16(api), min_version=i16(0), max_version=i16(high)) for api, high in highest.items()]
        values: dict[str, Any] = {"error_code": ErrorCode.none, "api_keys": tuple(keys)}
        if version:
            supported, finalized = (item_type(kind, f"{word}_features") for word in ("supported", "finalized"))
            level = i16(self.level)
            values |= {
                "throttle_time": NO_TIME,
                "supported_features": (supported(name=FEATURE, min_version=i16(0), max_version=level),),
                "finalized_features_epoch": i64(self.level),
                "finalized_features": (finalized(name=FEATURE, max_version_level=level, min_version_level=i16(0)),),
            }
        return kind(**values)


def test_a_cluster_speaks_what_all_its_brokers_do_as_they_are_now() -> None:
    asyncio.run(asyncio.wait_for(upgraded(), TIMEOUT))


async def upgraded() -> None:
    brokers = [OfAVersion(17, 1), OfAVersion(18, 2)]
    servers = [await asyncio.start_server(broker.serve, LOOPBACK, 0) for broker in brokers]
    places = [server.sockets[0].getsockname()[:2] for server in servers]
    cluster = Cluster("east", {"bootstrap.servers": f"{places[1][0]}:{places[1][1]}"}, PATIENT)
    try:
        await cluster.learn()
        assert cluster.versions[FETCH] == (0, 18)
        # The one that was asked first was upgraded before the other.
        cluster.brokers = {node: Broker(host, port, None) for node, (host, port) in enumerate(places)}
        await cluster.learn()
        assert cluster.versions[FETCH] == (0, 17)
        assert cluster.supported == {FEATURE: (0, 1)}
        assert (cluster.finalized, cluster.features_epoch) == ({FEATURE: (0, 2)}, 2)
        brokers[0].highest = 18
        await cluster.learn()
        assert cluster.versions[FETCH] == (0, 18)
        # And the upgrade is undone.
        brokers[1].highest = 16
        await cluster.learn()
        assert cluster.versions[FETCH] == (0, 16)
        # Where none is found at the address that it has of itself, whoever answers speaks for all.
        with closing(socket.socket()) as refuses:
            refuses.bind((LOOPBACK, 0))
            cluster.brokers = {7: Broker(LOOPBACK, refuses.getsockname()[1], None)}
            await cluster.learn()
        assert cluster.versions[FETCH] == (0, 16)
        assert cluster.is_up
    finally:
        cluster.close()
        for server in servers:
            server.close()
