"""Bytes that no Kafka client sends: a reason for each, and nobody else is troubled."""

import errno
import random
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.proxy.hold import MOST_BYTES
from strandline.proxy.session import LARGEST_GATHERED
from tests.proxy.support import Proxied, create, read, received, write
from tests.support import TIMEOUT, wait_for

API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


def asked(proxy: Proxied, sent: bytes, *, port: int | None = None) -> bytes:
    """What comes back for some bytes until the proxy closes the connection, which it has to."""
    host, own = proxy.address.split(":")
    with socket.create_connection((host, port or int(own)), timeout=TIMEOUT) as connection:
        found = b""
        try:
            # It may be closed before all is sent.
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                found += part
        except OSError as error:
            # Of a connection that was reset between the two calls, `shutdown` says that it is not connected.
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
        return found


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def many_groups() -> bytes:
    """The body of an OffsetFetch 8: a hundred groups of two thousand topics, with no name and no partition."""
    topics = uvarint(2001) + b"\1\1\0" * 2000
    return uvarint(101) + (b"\2g" + topics + b"\0") * 100 + b"\0\0"


def uvarint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def test_an_unknown_version_of_api_versions_is_answered_in_version_0_with_error_35(proxy: Proxied) -> None:
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
        connection.sendall(frame(struct.pack(">hhih", 18, 99, 7, -1)))
        size, correlation, code, count = struct.unpack(">iihi", received(connection, 14))
    assert (correlation, code) == (7, 35)
    assert count > 40
    assert size == 4 + 2 + 4 + 6 * count


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" + bytes(20), "client id of"),
        (struct.pack(">i", -5) + bytes(20), "no client of Kafka speaks here"),
        (struct.pack(">i", 3) + bytes(20), "no client of Kafka speaks here"),
        (struct.pack(">ihhih", 2_000_000_000, 3, 9, 1, -1) + bytes(200), "are allowed"),
        (struct.pack(">ihhih", 2_000_000_000, 0, 9, 1, -1) + bytes(200), "are allowed"),
        (frame(struct.pack(">hhih", 3000, 0, 1, -1)), "is not spoken here"),
        (frame(struct.pack(">hhih", 3, 99, 1, -1)), "is not spoken here"),
        (frame(struct.pack(">hhih", 29, 2, 1, -1) + bytes(10)), "is not spoken here"),
        (frame(struct.pack(">hhih", 3, 8, 1, -1) + b"\x7f\xff\xff\xff" + bytes(8)), "cannot be read"),
        (frame(struct.pack(">hhih", 3, 1, 1, 30000) + bytes(8)), "client id of"),
        # Three million topics without a name, all of them there: true, and not to be made values of.
        (frame(struct.pack(">hhihi", 3, 1, 1, -1, 3_000_000) + bytes(6_000_000)), "too many items"),
        # The same within one another: groups of many topics each.
        (frame(struct.pack(">hhih", 9, 8, 1, -1) + b"\0" + many_groups()), "too many items"),
    ],
    ids=[
        "http",
        "negative",
        "short",
        "huge",
        "huge-produce",
        "api",
        "version",
        "refused",
        "array",
        "name",
        "many",
        "within",
    ],
)
def test_what_is_no_request_ends_its_connection_with_a_reason(proxy: Proxied, sent: bytes, reason: str) -> None:
    before = len(proxy.log.read_text())
    assert asked(proxy, sent) == b""
    wait_for(lambda: reason in proxy.log.read_text()[before:], "the reason is told")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_garbage_troubles_nobody_else(proxy: Proxied, data: st.DataObject) -> None:
    choose = random.Random(data.draw(st.integers(0, 1 << 32)))
    head = struct.pack(">hhih", choose.randrange(0, 93), choose.randrange(0, 19), choose.randrange(1 << 31), -1)
    body = head + choose.randbytes(choose.randrange(0, 400))
    if choose.random() < 0.2:
        # An array of many: as many as it says, or not nearly.
        body = head + struct.pack(">i", choose.choice((1000, 300_000, 1 << 30))) + bytes(choose.randrange(600_000))
    sent = frame(body) if choose.random() < 0.7 else struct.pack(">i", choose.randrange(1 << 31)) + body
    asked(proxy, sent + choose.randbytes(choose.randrange(0, 50)))
    answer = asked_versions(proxy)
    assert answer[:8] == struct.pack(">ii", len(answer) - 4, 7)


def asked_versions(proxy: Proxied) -> bytes:
    host, port = proxy.address.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as connection:
        connection.sendall(frame(API_VERSIONS))
        size = received(connection, 4)
        return size + received(connection, struct.unpack(">i", size)[0])


def test_memory_stays_bounded_under_frames_that_never_end(proxy: Proxied) -> None:
    host, port = proxy.address.split(":")

    def memory() -> int:
        return int(Path(f"/proc/{proxy.process.pid}/statm").read_text().split()[1]) * 4096

    def begun_so_far() -> int:
        return proxy.requests()["east", "metadata", 8]

    before, begun_before = memory(), begun_so_far()
    # A Metadata request that says it has eight megabytes, a little of which comes.
    begun = struct.pack(">ihhih", 8_000_000, 3, 8, 1, -1) + bytes(50_000)
    connections = []
    try:
        for _ in range(100):
            connection = socket.create_connection((host, int(port)), timeout=TIMEOUT)
            connection.sendall(begun)
            connections.append(connection)
        wait_for(lambda: begun_so_far() >= begun_before + len(connections), "the proxy has read a part of each")
        create(proxy.settings(), {"while-flooded": 1})
        write(proxy.settings(), [("while-flooded", "a")])
        assert len(read(proxy.settings(), ["while-flooded"], 1)) == 1
        assert memory() - before < 100 << 20
    finally:
        for connection in connections:
            connection.close()


def test_large_requests_are_answered_beside_frames_that_never_end(proxy: Proxied) -> None:
    host, port = proxy.address.split(":")
    before = proxy.requests()["east", "metadata", 7]
    # So many as would take all the room there is, were it theirs for what they say.
    many, begun = MOST_BYTES // LARGEST_GATHERED, struct.pack(">ihhih", LARGEST_GATHERED, 3, 7, 1, -1) + bytes(1000)
    names = b"".join(struct.pack(">h", 9) + b"none-%04d" % number for number in range(3000))
    with ExitStack() as connections:
        for _ in range(many):
            connection = connections.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT))
            connection.sendall(begun)
        wait_for(lambda: proxy.requests()["east", "metadata", 7] - before == many, "all have begun")
        asks = connections.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT))
        asks.sendall(frame(struct.pack(">hhihi", 3, 4, 9, -1, 3000) + names + b"\0"))
        assert struct.unpack(">ii", received(asks, 8))[1] == 9
