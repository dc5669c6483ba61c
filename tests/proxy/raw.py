"""Requests as bytes over a connection of one's own: what no client library lets one send, or as many at once."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from tests.proxy.support import Proxied, received
from tests.support import TIMEOUT, wait_for

LIST_OFFSETS, METADATA, FETCH, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 2, 3, 1, 8, 9, 10


def request(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    """A frame, of a client without a name."""
    return struct.pack(">ihhih", 10 + len(body), api_key, version, correlation_id, -1) + body


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def fetch(topic: str, *, wait_ms: int, correlation_id: int, most: int = 1 << 20) -> bytes:
    """What there is of partition 0 from its start, or nothing after so long."""
    body = struct.pack(">iiiib", -1, wait_ms, 1, most, 0)
    return request(
        FETCH, 4, correlation_id, body + struct.pack(">i", 1) + text(topic) + struct.pack(">iiqi", 1, 0, 0, most)
    )


def metadata(correlation_id: int) -> bytes:
    """Of all topics."""
    return request(METADATA, 1, correlation_id, struct.pack(">i", -1))


def commit(group: str, topic: str, offset: int, correlation_id: int) -> bytes:
    """Of no member, for partition 0."""
    body = text(group) + struct.pack(">i", -1) + text("") + struct.pack(">qi", -1, 1) + text(topic)
    return request(OFFSET_COMMIT, 2, correlation_id, body + struct.pack(">iiq", 1, 0, offset) + text(""))


def committed(group: str, topic: str, correlation_id: int) -> bytes:
    """Asks for the offset of partition 0."""
    body = text(group) + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 0)
    return request(OFFSET_FETCH, 1, correlation_id, body)


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """The correlation id of the next answer, and what stands behind it."""
    size, correlation_id = struct.unpack(">ii", received(connection, 8))
    return correlation_id, received(connection, size - 4)


@contextmanager
def at_leader(proxy: Proxied, topic: str) -> Iterator[socket.socket]:
    """A connection to who leads partition 0 of a topic, and knows it.

    A broker tells who leads a topic that was just made before it takes requests for it, and refuses them until then.
    """
    admin = AdminClient(proxy.settings())

    def place() -> tuple[str, int] | None:
        listed = admin.list_topics(topic, timeout=TIMEOUT)
        partition = listed.topics[topic].partitions.get(0)
        leader = None if partition is None else listed.brokers.get(partition.leader)
        return None if leader is None else (str(leader.host), leader.port)

    leader = wait_for(place, f"{topic} has a leader")
    assert leader is not None
    with socket.create_connection(leader, timeout=TIMEOUT) as connection:
        wait_for(lambda: leads(connection, topic), "the leader knows that it leads")
        yield connection


def leads(connection: socket.socket, topic: str) -> bool:
    """Whether the broker tells where partition 0 of a topic ends."""
    body = struct.pack(">ii", -1, 1) + text(topic) + struct.pack(">iiq", 1, 0, -1)
    connection.sendall(request(LIST_OFFSETS, 1, 0, body))
    error: int = struct.unpack_from(">h", answer(connection)[1], 4 + len(text(topic)) + 8)[0]
    assert error in {0, ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition}
    return error == 0


def asked(proxy: Proxied, api: str) -> int:
    """How often an API was used so far."""
    return sum(count for (_, name, _), count in proxy.requests().items() if name == api)


@contextmanager
def at_bootstrap(proxy: Proxied) -> Iterator[socket.socket]:
    """A connection to the port where clients begin."""
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
        yield connection


def coordinator(connection: socket.socket, group: str) -> tuple[int, int, str]:
    """Who coordinates a group, at which port, and what is said of it."""
    connection.sendall(request(FIND_COORDINATOR, 2, 5, text(group) + b"\0"))
    _, body = answer(connection)
    error, size = struct.unpack_from(">hh", body, 4)
    assert error == 0
    node, host_size = struct.unpack_from(">ih", body, 8 + size)
    return node, struct.unpack(">i", body[14 + size + host_size :])[0], body[8 : 8 + size].decode()
