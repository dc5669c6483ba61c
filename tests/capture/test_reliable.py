"""What Kafka has to do with a request, and what happens while it is away: on a real broker, frozen for a moment."""

import asyncio
import logging
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError

from strandline.capture import publisher
from strandline.capture.connection import Connection
from strandline.capture.proxy import Proxy
from strandline.capture.recorder import Reliable
from strandline.errors import BrokerUnreachable, WrongListener
from strandline.stack import KafkaCluster
from strandline.stack.ports import free_port
from tests.capture.support import OK, Upstream, capturing, in_kafka, new_topic, port_of, run, talk, until
from tests.support import TIMEOUT, frozen

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
EXPECTING = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def settle() -> None:
    """Long enough for whatever is going to pass without Kafka; a test that would fail is not made to pass by it."""
    await asyncio.sleep(0.3)


@pytest.mark.parametrize("reliable", [Reliable.MUTATING, Reliable.ALL])
@pytest.mark.parametrize("request_", [POST, b"DELETE / HTTP/1.1\r\n\r\n", EXPECTING + b"hello"], ids=lambda r: r[:6])
def test_a_request_is_complete_for_the_upstream_only_when_kafka_has_it(
    kafka: KafkaCluster, reliable: Reliable, request_: bytes
) -> None:
    in_topic: list[bytes] = []

    class Watching(Upstream):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(request_))
            found = await asyncio.to_thread(in_kafka, kafka.address, topic)
            in_topic.extend(request for connection in found for request in connection.requests)
            writer.write(OK)
            writer.close()

    async def go() -> None:
        async with (
            Watching().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, reliable=reliable) as proxy,
        ):
            assert await talk(port_of(proxy), request_) == OK

    topic = new_topic()
    run(go())
    assert in_topic == [request_]


def test_a_request_waits_while_kafka_is_away_and_all_that_follows_it_waits_in_order(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, release_after_s=50) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            with frozen(kafka):
                writer.write(GET + POST + GET)
                await until(lambda: upstream.received == GET, "what comes before has passed")
                await settle()
                assert upstream.received == GET
                assert proxy.counts.held_now == 1
                assert await talk(port_of(proxy), GET) == OK  # a read is not held
            assert await reader.readexactly(3 * len(OK)) == OK * 3
            assert bytes(upstream.received) == GET + GET + POST + GET
            writer.close()

    topic = new_topic()
    run(go())
    found = next(connection for connection in in_kafka(kafka.address, topic) if "release" in connection.kinds)
    assert found.requests == [GET, POST, GET]
    assert ("release", False) in found.events


def test_a_client_that_waits_for_100_continue_is_not_kept_waiting_by_kafka(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, new_topic(), release_after_s=50) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            with frozen(kafka):
                writer.write(EXPECTING)
                assert await reader.readexactly(len(CONTINUE)) == CONTINUE
                writer.write(b"hello")
                await until(lambda: proxy.counts.held_now, "the end of the body is held")
                assert upstream.complete == 0
            assert await reader.readexactly(len(OK)) == OK
            writer.close()

    run(go())


@pytest.mark.parametrize("how", ["half-close", "reset"])
def test_a_client_that_leaves_after_its_request_does_not_take_it_back(kafka: KafkaCluster, how: str) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, release_after_s=50) as proxy,
        ):
            _, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            with frozen(kafka):
                writer.write(POST)
                await until(lambda: proxy.counts.held_now, "it is held")
                writer.transport.abort() if how == "reset" else writer.write_eof()
                await settle()
                assert upstream.complete == 0
            await until(lambda: upstream.complete == 1, "it arrives")
            writer.close()
            await until(lambda: upstream.ended == 1, "and then the end")

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.requests == [POST]
    assert found.is_whole


def test_a_connection_that_waits_for_kafka_is_not_taken_for_idle(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, new_topic(), release_after_s=50, idle_after_s=1.5) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            with frozen(kafka):
                writer.write(POST)
                await until(lambda: proxy.counts.held_now, "it is held")
                _, idle = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                await until(lambda: proxy.counts.idle_closed, "one that came later has been idle for too long")
                idle.close()
            assert await reader.readexactly(len(OK)) == OK
            writer.close()

    run(go())


def test_after_too_long_a_request_goes_on_and_the_record_says_so(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, release_after_s=0.2) as proxy,
        ):
            with frozen(kafka):
                assert await talk(port_of(proxy), POST + POST) == OK + OK
                assert proxy.counts.timed_out == 2

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.requests == [POST, POST]
    assert [value for kind, value in found.events if kind == "release"] == [True, True]
    assert found.is_whole


def test_without_kafka_nothing_waits_where_nothing_has_to(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "TOPIC_TIMEOUT_S", 0.5)

    async def go() -> Proxy:
        async with Upstream().listening() as upstream:
            nowhere = f"127.0.0.1:{free_port()}"
            options = {"reliable": Reliable.NONE, "buffer_bytes": 1 << 20, "stop_within_s": 0.2}
            async with capturing(nowhere, upstream.port, new_topic(), **options) as proxy:
                body = b"x" * (1 << 18)
                for _ in range(10):
                    head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
                    assert await talk(port_of(proxy), head + body) == OK
                assert proxy.publisher.waiting_bytes <= 1 << 20
                assert proxy.publisher.is_losing
                return proxy

    with caplog.at_level(logging.INFO):
        proxy = run(go())
    assert proxy.publisher.dropped >= 5
    assert proxy.publisher.failed > 0  # what there was room for, and Kafka never came
    told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("Kafka does not keep up")
    assert told[1].startswith(f"records are kept again: {proxy.publisher.dropped} were dropped")


def test_while_kafka_is_away_each_kind_of_trouble_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        writer = publisher.Publisher(
            {"bootstrap.servers": f"127.0.0.1:{free_port()}"}, new_topic(), buffer_bytes=1 << 20
        )
        await until(lambda: any("Connection refused" in line for line in caplog.messages), "it is told")
        for _ in range(3):
            writer._complained(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        await writer.close(0)

    with caplog.at_level(logging.INFO):
        run(go())
    [told] = [line for line in caplog.messages if "Connection refused" in line]
    assert told.startswith("Kafka: ")


def test_where_requests_wait_for_kafka_the_capture_does_not_start_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "TOPIC_TIMEOUT_S", 0.5)

    async def go() -> None:
        async with capturing(f"127.0.0.1:{free_port()}", free_port(), new_topic()):
            pass

    with pytest.raises(BrokerUnreachable):
        run(go())


def test_a_capture_with_tls_towards_a_kafka_without_it_says_so(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "TOPIC_TIMEOUT_S", 1.0)

    async def go() -> None:
        settings = {**kafka.settings(), "security.protocol": "ssl"}
        writer = publisher.Publisher(settings, new_topic(), buffer_bytes=1 << 20)
        try:
            await asyncio.to_thread(writer.create_topic, 1)
        finally:
            await writer.close(0)

    with pytest.raises(WrongListener, match=f"^Kafka at {kafka.address}: this listener does not speak TLS; "):
        run(go())


def test_a_connection_that_lost_a_record_is_cut_there_and_recorded_anew_under_another_id(kafka: KafkaCluster) -> None:
    body = b"x" * (1 << 18)
    large = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(request)
        assert await reader.readexactly(len(OK)) == OK

    async def go() -> None:
        async with Upstream().listening() as upstream:
            options = {"reliable": Reliable.NONE, "buffer_bytes": 1 << 20}
            async with capturing(kafka.address, upstream.port, topic, **options) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                await ask(reader, writer, GET)
                await until(lambda: proxy.publisher.published, "the topic is there")
                with frozen(kafka):
                    while not proxy.publisher.dropped:
                        await ask(reader, writer, large)
                await until(lambda: not proxy.publisher.is_losing, "there is room again")
                await ask(reader, writer, POST)
                writer.close()
            assert upstream.complete > 3

    topic = new_topic()
    run(go())
    first, second = in_kafka(kafka.address, topic)
    assert not first.is_whole
    assert set(first.requests) == {GET, large}
    assert first.kinds.count("end") == len(first.requests)
    assert second.is_whole
    assert second.requests == [POST]
    assert first.id != second.id


def test_word_of_records_before_a_loss_does_not_end_the_recording_that_was_begun_since(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"x" * (1 << 18)
    large = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    held = asyncio.Event()

    class Holding(Upstream):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 20):
                self.received += data
                while self.received.startswith(large):
                    del self.received[: len(large)]
                    writer.write(OK)
                if self.received.startswith(GET):
                    await held.wait()
                    del self.received[: len(GET)]
                    writer.write(OK)
            writer.close()

    async def go() -> None:
        async with Holding().listening() as upstream:
            options = {"reliable": Reliable.NONE, "buffer_bytes": 1 << 20}
            async with capturing(kafka.address, upstream.port, topic, **options) as proxy:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
                writer.write(large)
                assert await reader.readexactly(len(OK)) == OK
                await until(lambda: proxy.publisher.published, "the topic is there")
                with frozen(kafka):
                    while not proxy.publisher.dropped:
                        writer.write(large)
                        assert await reader.readexactly(len(OK)) == OK
                    writer.write(GET)
                    await until(lambda: upstream.received == GET, "another request has come")
                await until(lambda: not proxy.publisher.waiting_bytes, "Kafka has all that was before the loss")
                held.set()
                assert await reader.readexactly(len(OK)) == OK
                assert proxy.counts.unrecorded == 0
                writer.close()
                monkeypatch.undo()

    # What is recorded is not sent before it is answered.
    monkeypatch.setattr("strandline.capture.proxy.TICK_S", 2 * TIMEOUT)
    topic = new_topic()
    run(go())
    first, second = in_kafka(kafka.address, topic)
    assert not first.is_whole
    assert second.is_whole
    assert second.requests == [GET]
    assert second.written == OK


def test_a_request_whose_record_was_dropped_waits_as_long_as_any_and_the_next_is_recorded(kafka: KafkaCluster) -> None:
    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, topic, release_after_s=0.3) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(proxy))
            proxy.publisher.is_losing = True
            writer.write(POST)
            assert await reader.readexactly(len(OK)) == OK
            assert (proxy.counts.timed_out, proxy.counts.unrecorded) == (1, 0)
            assert proxy.publisher.dropped == 1
            proxy.publisher.is_losing = False
            # However slow the broker is, the next one waits for it.
            proxy.settings = replace(proxy.settings, release_after_s=2 * TIMEOUT)
            writer.write(POST)
            assert await reader.readexactly(len(OK)) == OK
            assert proxy.counts.timed_out == 1
            writer.close()

    topic = new_topic()
    run(go())
    (found,) = in_kafka(kafka.address, topic)
    assert found.requests == [POST]
    assert ("release", False) in found.events


def test_an_upload_waits_for_room_once_and_not_with_each_read(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(4 << 20)
    waits: list[float] = []
    wait = Proxy.wait_for_room

    def noting(proxy: Proxy, connection: Connection, within_s: float) -> None:
        waits.append(within_s)
        wait(proxy, connection, within_s)

    monkeypatch.setattr(Proxy, "wait_for_room", noting)

    async def go() -> None:
        async with (
            Upstream().listening() as upstream,
            capturing(kafka.address, upstream.port, new_topic(), release_after_s=0.2, buffer_bytes=1 << 20) as proxy,
        ):
            with frozen(kafka):
                assert (
                    await talk(port_of(proxy), b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body), body) == OK
                )
            assert waits == [0.2]

    run(go())
