"""Nobody who comes through the proxy is a replica to a broker, whatever rights the proxy has there."""

import socket
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import fields
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.types import BrokerId
from kio.static.primitive import i8, i32, i32Timedelta, i64

from strandline.stack.kafka import KafkaCluster
from strandline.wire.kafka_frames import FETCH, encode_request, request_type
from tests.proxy.raw import LIST_OFFSETS, answer, at_bootstrap
from tests.proxy.support import Proxied, proxied
from tests.support import wait_for

Clusters = tuple[KafkaCluster, KafkaCluster]
OFFSET_FOR_LEADER_EPOCH = 23
ASKED = [
    *((FETCH, version) for version in (4, 7, 12, 14, 15, 17)),
    *((LIST_OFFSETS, version) for version in (1, 7)),
    *((OFFSET_FOR_LEADER_EPOCH, version) for version in (3, 4)),
]
NOTHING = {
    "max_wait": i32Timedelta.parse(timedelta(0)),
    "min_bytes": i32(0),
    "max_bytes": i32(1000),
    "isolation_level": i8(0),
    "topics": (),
    "forgotten_topics_data": (),
}


@pytest.fixture(scope="module", params=["passed", "gathered"])
def asked_of(
    request: pytest.FixtureRequest, proxy: Proxied, clusters: Clusters, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    """A proxy that passes these requests as they are, and one that reads them whole, for its filters."""
    if request.param == "passed":
        yield proxy
        return
    sections = {"filters": ["tests.proxy.filters:Primary", "tests.proxy.filters:Records"]}
    with proxied(Path(tmp_path_factory.mktemp("reads")), sections=sections, east=clusters[0].address) as reads:
        yield reads


def of_replica(api_key: int, version: int, replica: int) -> bytes:
    """A request for nothing, of a replica."""
    kind = request_type(api_key, version)
    given = {each.name: NOTHING[each.name] for each in fields(kind) if each.name in NOTHING}
    claim = {"replica_id": BrokerId(replica)}
    if api_key == FETCH and version >= 15:
        state = request_type(FETCH, version)(**given).replica_state
        claim = {"replica_state": type(state)(replica_id=BrokerId(replica), replica_epoch=i64(3))}
    return encode_request(kind(**given, **claim), 9, "c")


def came_back(connection: socket.socket) -> bool:
    """Whether there is an answer, and not the end, which is a reset where the proxy has not read all that was sent."""
    try:
        if not connection.recv(1, socket.MSG_PEEK):
            return False
    except ConnectionResetError:
        return False
    return answer(connection)[0] == 9


@pytest.mark.parametrize(("api_key", "version"), ASKED)
def test_who_claims_to_be_a_replica_is_turned_away_with_a_reason_and_clients_are_not(
    asked_of: Proxied, api_key: int, version: int
) -> None:
    for replica in (-1, -2):
        with at_bootstrap(asked_of) as connection:
            connection.sendall(of_replica(api_key, version, replica))
            assert came_back(connection)
    before = len(asked_of.log.read_text())
    for replica in (0, 1, 1_000_001):
        with at_bootstrap(asked_of) as connection:
            connection.sendall(of_replica(api_key, version, replica))
            assert not came_back(connection)
    wait_for(lambda: asked_of.log.read_text()[before:].count("which no client is") == 3, "the reasons are told")


def test_a_fetch_of_a_replica_is_turned_away_also_where_it_comes_byte_by_byte(proxy: Proxied) -> None:
    for replica in (-1, 0):
        with at_bootstrap(proxy) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # It may be turned away before its last byte.
            with suppress(ConnectionError) if replica >= 0 else nullcontext():
                for byte in of_replica(FETCH, 17, replica):
                    connection.sendall(bytes([byte]))
            assert came_back(connection) == (replica < 0)
