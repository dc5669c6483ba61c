"""The proxy on real sockets and a real broker: bytes pass unchanged, and what passed is in Kafka."""

import asyncio
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.capture import proxy as proxy_module
from strandline.capture.config import CaptureConfig, FrontTls, UpstreamTls, settings_of
from strandline.capture.connection import Connection
from strandline.capture.recorder import Reliable
from strandline.capture.redaction import Action, Redaction
from strandline.stack import KafkaCluster
from strandline.stack.certificates import Authority
from strandline.stack.ports import free_port
from strandline.wire.http1 import ResponseFramer
from strandline.wire.traffic import when
from strandline.wire.traffic_pb2 import TrafficStream
from tests.capture.support import (
    OK,
    Captured,
    Upstream,
    capturing,
    in_kafka,
    new_topic,
    port_of,
    records_of,
    run,
    talk,
    until,
)
from tests.support import frozen
from tests.wire.messages import Message, pieces, requests

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: t\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n"
CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nSum: 1\r\n\r\n"
EXPECTING = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"
HEAD_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


async def exchange(
    kafka: KafkaCluster, pieces_: Sequence[bytes], answers: Sequence[bytes], **options: Any
) -> tuple[Upstream, bytes, Captured]:
    """Through the proxy, from a client that says when it is done; and what was recorded."""
    topic = new_topic()
    async with Upstream(answers).listening() as upstream:
        async with capturing(kafka.address, upstream.port, topic, **options) as proxy:
            answer = await talk(port_of(proxy), *pieces_)
        (found,) = await asyncio.to_thread(in_kafka, kafka.address, topic)
    return upstream, answer, found


@pytest.mark.parametrize(
    ("sent", "answers", "asked"),
    [
        pytest.param([GET], [OK], [GET], id="plain"),
        pytest.param([GET + POST + GET], [OK] * 3, [GET, POST, GET], id="pipelined"),
        pytest.param([POST + POST[:30], POST[30:] + GET], [OK] * 3, [POST, POST, GET], id="pipelined-and-cut"),
        pytest.param([CHUNKED], [CHUNKED_ANSWER], [CHUNKED], id="chunked-with-trailers"),
        pytest.param([EXPECTING, b"hello"], [OK], [EXPECTING + b"hello"], id="expect-continue"),
        pytest.param([HEAD, GET], [HEAD_ANSWER, OK], [HEAD, GET], id="head"),
        pytest.param([GET, GET], [NO_CONTENT, NOT_MODIFIED], [GET, GET], id="no-content"),
        pytest.param([b"\r\n" + GET], [OK], [b"\r\n" + GET], id="empty-line-before"),
        pytest.param([b"GET / HTTP/1.0\n\n"], [OK], [b"GET / HTTP/1.0\n\n"], id="bare-line-feeds"),
    ],
)
@pytest.mark.parametrize("reliable", [Reliable.NONE, Reliable.ALL])
def test_traffic_passes_unchanged_and_each_request_is_recorded_by_itself(
    kafka: KafkaCluster, reliable: Reliable, sent: list[bytes], answers: list[bytes], asked: list[bytes]
) -> None:
    upstream, answer, found = run(exchange(kafka, sent, answers, reliable=reliable))
    assert bytes(upstream.received) == b"".join(sent)
    assert answer == (CONTINUE if EXPECTING in sent else b"") + b"".join(answers)
    assert found.requests == asked
    assert found.written == answer
    assert found.is_whole
    assert found.kinds[0] == "connect"
    assert found.kinds[-1] == "close"
    assert found.kinds.count("disconnect") == 1
    assert [value for kind, value in found.events if kind == "release"] == [False] * (
        len(asked) if reliable is Reliable.ALL else 0
    )


@pytest.fixture(scope="module")
def endless(kafka: KafkaCluster) -> str:
    return new_topic()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests(), min_size=1, max_size=4), st.data())
def test_any_requests_cut_anywhere_arrive_as_they_were(
    kafka: KafkaCluster, endless: str, messages: list[Message], data: st.DataObject
) -> None:
    cut = [piece for piece in data.draw(pieces(b"".join(message.wire for message in messages))) if piece]

    async def go() -> None:
        answers = [HEAD_ANSWER if message.method == b"HEAD" else OK for message in messages]
        async with (
            Upstream(answers).listening() as upstream,
            capturing(kafka.address, upstream.port, endless) as proxy,
        ):
            assert await talk(port_of(proxy), *cut) == b"".join(answers)
            assert bytes(upstream.received) == b"".join(cut)

    run(go())


def test_after_an_upgrade_both_sides_pass_as_they_are(kafka: KafkaCluster) -> None:
    asked = b"GET /chat HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    upgraded = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"

    async def go() -> tuple[bytes, int]:
        async with Upstream([upgraded]).listening() as upstream:
            async with capturing(kafka.address, upstream.port, topic) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                writer.write(asked)
                assert await reader.readexactly(len(upgraded)) == upgraded
                writer.write(b"\x81\x05POST / HTTP/1.1\r\n\r\n")
                writer.write_eof()
                echo = await reader.read(-1)
                writer.close()
            return echo, proxy.counts.opaque["upgrade"]

    topic = new_topic()
    echo, upgrades = run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert echo == b"\x81\x05POST / HTTP/1.1\r\n\r\n"
    assert upgrades == 1
    assert found.requests == [asked, echo]
    assert found.kinds.count("end") == 1
    assert found.written == upgraded + echo


def test_garbage_passes_both_ways_and_is_counted(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with Upstream([b"\x00garbage\xff"]).listening() as upstream:
            async with capturing(kafka.address, upstream.port, topic) as proxy:
                assert await talk(port_of(proxy), b"\x16\x03\x01\x02\n\n") == b"\x00garbage\xff"
            assert bytes(upstream.received) == b"\x16\x03\x01\x02\n\n"
            assert proxy.counts.opaque["request"] == 1

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.read == b"\x16\x03\x01\x02\n\n"
    assert found.written == b"\x00garbage\xff"
    assert "end" not in found.kinds


def test_a_server_that_closes_amid_its_response_is_seen_so_by_the_client(kafka: KafkaCluster) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"

    async def go() -> None:
        async with (
            Upstream([half], then_close=True).listening() as upstream,
            capturing(kafka.address, upstream.port, topic) as proxy,
        ):
            assert await talk(port_of(proxy), GET, half_close=False) == half

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.written == half
    assert found.kinds == ["connect", "read", "end", "write", "disconnect", "close"]


def test_a_client_that_goes_away_amid_its_request_is_seen_so_by_the_server(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with Upstream().listening() as upstream:
            async with capturing(kafka.address, upstream.port, topic) as proxy:
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                writer.write(POST[:-1])
                await until(lambda: upstream.received == POST[:-1], "the upstream has the beginning")
                writer.transport.abort()
                await until(lambda: not proxy.counts.open_connections and upstream.ended, "both sides have ended")
            assert upstream.complete == 0

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.read == POST[:-1]
    assert "end" not in found.kinds
    assert found.is_whole


def test_an_upstream_that_is_not_there_gives_a_502_and_nothing_is_recorded_of_the_request(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with capturing(kafka.address, free_port(), topic) as proxy:
            answer = await talk(port_of(proxy), POST, half_close=False)
            assert answer.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
            assert b"Connection: close\r\n" in answer
            assert proxy.counts.upstream_failures == 1

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.kinds == ["connect", "exception", "close"]
    assert "upstream" in dict(found.events)["exception"]


def test_a_slow_reader_of_a_large_body_slows_the_upstream_down_and_takes_no_memory(kafka: KafkaCluster) -> None:
    size = 64 << 20
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            writer.write(b"x" * (1 << 16))
            sent += 1 << 16
            await writer.drain()
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with capturing(kafka.address, port, new_topic(), buffer_bytes=1 << 20) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy), limit=1 << 16)
            writer.write(GET)
            head = await reader.readuntil(b"\r\n\r\n")
            before = -1
            while before != sent:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
            # What the kernel's buffers hold, and a few reads.
            assert sent < 32 << 20
            assert proxy.publisher.waiting_bytes <= 1 << 20
            got = 0
            while got < size:
                got += len(await reader.read(1 << 20))
            assert head.startswith(b"HTTP/1.1 200")
            writer.close()
        server.close()

    run(go())


MOST_HELD = 3 << 19
"""1.5 MiB: what docs/capture.md says that a connection holds at most."""


def bytes_held(connection: Connection) -> int:
    """What a connection holds: records to be written, what waits for Kafka, and what is to be sent either way."""
    sides = (connection._client, connection._upstream)
    unsent = sum(side.get_write_buffer_size() for side in sides if side is not None)
    early = sum(len(data) for _, data in connection._early)
    pending = 0 if connection._recorder is None else connection._recorder.pending
    return pending + connection._queue.bytes + unsent + early


@pytest.mark.parametrize("waits_for", ["the upstream", "Kafka"])
def test_a_connection_whose_sides_read_nothing_holds_no_more_than_is_documented(
    kafka: KafkaCluster, waits_for: str
) -> None:
    """Clients that send without end and read nothing, an upstream that answers without end and reads nothing."""
    clients = 16
    endless = b"x" * (1 << 20)
    upload = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (1 << 40)
    # The first request has its answer. A second that must wait for Kafka holds up all behind it, the upload too.
    asked = [GET + POST + upload] if waits_for == "Kafka" else [GET + upload]
    most = Counter[Connection]()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        await send(writer)

    async def send(writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                writer.write(endless)
                await writer.drain()

    async def client(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(asked[0])
        await send(writer)

    async def go() -> None:
        server = await asyncio.start_server(pour, "127.0.0.1", 0, limit=1 << 10)
        upstream = server.sockets[0].getsockname()[1]
        options = {"release_after_s": 600.0, "stop_within_s": 0.1, "buffer_bytes": 64 << 20}
        async with capturing(kafka.address, upstream, new_topic(), **options) as proxy:

            def is_stuck(connection: Connection) -> bool:
                most[connection] = max(most[connection], bytes_held(connection))
                assert most[connection] <= MOST_HELD
                upstream = connection._upstream
                return bool(connection._pauses) and upstream is not None and not upstream.is_reading()

            with frozen(kafka) if waits_for == "Kafka" else nullcontext():
                tasks = [asyncio.create_task(client(port_of(proxy))) for _ in range(clients)]
                # Looked at in every turn of the loop: records leave soon after they have come together.
                while len(proxy._connections) < clients or not all([*map(is_stuck, proxy._connections)]):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
        server.close()

    run(go())
    assert len(most) == clients
    # And the bound means something: what is stuck is held.
    assert min(most.values()) > 64 << 10


class Stuck(asyncio.Transport):
    """A connection to an upstream that reads nothing: once closed, it waits to send the rest."""

    written = b""
    is_closed = is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_aborted = True


def test_an_upstream_that_does_not_read_is_cut_off_after_the_client_has_gone(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.capture.connection.UNSENT_S", 0.2)
    stuck = Stuck()

    async def connect(_: object) -> Stuck:
        return stuck

    async def go() -> None:
        async with capturing(kafka.address, free_port(), new_topic()) as proxy:
            monkeypatch.setattr(proxy, "connect_upstream", connect)
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            writer.write(POST)
            await until(lambda: stuck.written == POST, "the request is on its way")
            writer.transport.abort()
            await until(lambda: stuck.is_closed, "the client has gone")
            await until(lambda: stuck.is_aborted, "the upstream is cut off")

    run(go())


def test_a_large_upload_is_recorded_whole_even_where_the_buffer_is_small(kafka: KafkaCluster) -> None:
    size = 64 << 20
    head = b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        while got < size:
            got += len(await reader.read(1 << 18))
        writer.write(OK)
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # A bound of a few records: what is not acknowledged makes the client wait.
        async with capturing(kafka.address, port, topic, buffer_bytes=4 << 20) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            writer.write(head)
            for _ in range(size >> 16):
                writer.write(b"x" * (1 << 16))
                await writer.drain()
            assert await reader.readexactly(len(OK)) == OK
            writer.close()
            assert proxy.publisher.dropped == 0
            assert proxy.counts.timed_out == 0
        server.close()

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.is_whole
    assert len(found.read) == len(head) + size
    assert found.kinds.count("end") == 1


def test_a_connection_on_which_nothing_comes_is_closed(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, new_topic(), idle_after_s=0.5) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            with suppress(ConnectionError):  # it is reset
                assert await reader.read(-1) == b""
            assert proxy.counts.idle_closed == 1
            writer.close()

    run(go())


def test_only_a_sample_of_the_connections_is_recorded_and_all_pass(kafka: KafkaCluster) -> None:
    async def go() -> int:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, sample=0.5) as proxy,
        ):
            for _ in range(40):
                assert await talk(port_of(proxy), POST) == OK
            return proxy.counts.sampled

    topic = new_topic()
    sampled = run(go())
    assert 5 < sampled < 35
    assert len(in_kafka(kafka.address, topic)) == sampled


def test_secrets_reach_the_upstream_and_never_kafka(kafka: KafkaCluster) -> None:
    body = b'{"password":"hunter2","n":1}'
    asked = (
        b"POST /?token=hunter2 HTTP/1.1\r\nAuthorization: Bearer hunter2\r\nContent-Length: %d\r\n\r\n" % len(body)
    ) + body
    told = b'{"user":{"pin":"hunter2-too"}}'
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: hunter2\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(told), told)
    redaction = Redaction(
        headers={"authorization": Action.HASH, "set-cookie": Action.REMOVE},
        query={"token": Action.REMOVE},
        json={"password": Action.REMOVE, "user.pin": Action.HASH},
        key=b"0123456789abcdef",
    )
    upstream, got, found = run(exchange(kafka, [asked], [answer], redaction=redaction))
    assert bytes(upstream.received) == asked
    assert got == answer
    assert b"hunter2" not in found.read + found.written
    assert found.read.endswith(b'Content-Length: 7\r\n\r\n{"n":1}')
    framer = ResponseFramer()
    assert framer.feed(found.written) == len(found.written)
    assert framer.complete


def test_tls_on_both_sides_and_a_certificate_that_is_not_believed(
    kafka: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority("test")
    certificate, key = authority.issue("proxy", ["127.0.0.1"])
    files = {"ca": authority.certificate, "certificate": certificate, "key": key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca"))

    async def go(topic: str, ca: str | None) -> bytes:
        async with Upstream().listening(ssl=server) as upstream:
            config = CaptureConfig(
                listen="127.0.0.1:0",
                to=f"https://127.0.0.1:{upstream.port}",
                tls=FrontTls(certificate=str(tmp_path / "certificate"), key=str(tmp_path / "key")),
                upstream_tls=UpstreamTls(ca=ca),
            )
            checked = settings_of(config, {})
            tls = {"front_tls": checked.front_tls, "upstream_tls": checked.upstream_tls}
            async with capturing(kafka.address, upstream.port, topic, **tls) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy), ssl=client)
                writer.write(POST)
                answer = await reader.read(100)
                writer.close()
                await until(lambda: not proxy.counts.open_connections, "it is seen that the client has gone")
            return answer

    topic = new_topic()
    assert run(go(topic, str(tmp_path / "ca"))) == OK
    (found,) = in_kafka(kafka.address, topic)
    assert found.requests == [POST]
    assert not caplog.records, "there is nothing to say of a connection that ends"
    assert run(go(new_topic(), None)).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize("ending", ["not sampled", "opaque", "half a request", "half a head", "half closed"])
def test_towards_an_upstream_with_tls_the_end_of_a_client_ends_the_connection(
    kafka: KafkaCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(proxy_module, "LEFT_S", 0.5)
    authority = Authority("test")
    certificate, key = authority.issue("upstream", ["127.0.0.1"])
    for name, text in {"certificate": certificate, "key": key}.items():
        (tmp_path / name).write_text(text)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    believed = ssl.create_default_context(cadata=authority.certificate)
    more = {"opaque": b"\x16\x03 no HTTP\n\n", "half a request": POST[:-1], "half a head": POST[:9]}.get(ending, b"")

    async def go() -> None:
        async with Upstream().listening(ssl=server) as upstream:
            options = {"upstream_tls": believed, "sample": 0.0 if ending == "not sampled" else 1.0}
            async with capturing(kafka.address, upstream.port, new_topic(), **options) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                writer.write(POST)
                assert await reader.readexactly(len(OK)) == OK
                writer.write(more + (POST if ending == "half closed" else b""))
                await until(lambda: upstream.received.startswith(POST + more), "the upstream has it")
                writer.write_eof()
                assert await reader.read(-1) == (OK if ending == "half closed" else b"")
                await until(lambda: not proxy.counts.open_connections and upstream.ended, "both sides have ended")
                writer.close()

    run(go())


def test_times_are_those_of_the_events_and_records_are_flushed_while_a_connection_stays_open(
    kafka: KafkaCluster,
) -> None:
    async def go() -> None:
        async with Upstream().listening() as upstream, capturing(kafka.address, upstream.port, topic) as proxy:
            begin = asyncio.get_running_loop().time()
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            writer.write(GET)
            await reader.readexactly(len(OK))
            await until(lambda: proxy.publisher.published >= 1, "the exchange is in Kafka")
            writer.write(GET[:10])
            await until(lambda: proxy.publisher.published >= 2, "half a request too")
            assert asyncio.get_running_loop().time() > begin
            writer.close()

    topic = new_topic()
    run(go())
    streams = [TrafficStream.FromString(record) for _, record in records_of(kafka.address, topic)]
    times = [when(observation) for stream in streams for observation in stream.subStream]
    assert times == sorted(times)
    assert times[-1] > times[0] > 1_700_000_000_000_000_000
    assert streams[-1].lastObservationWasUnterminatedRead
