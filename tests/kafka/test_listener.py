"""A listener with TLS that is spoken to without, and the other way, is told for what it is and in one line."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from strandline.errors import KafkaError, NoBroker, UnknownTopic, WrongListener
from strandline.kafka.cluster import Cluster, host_and_port
from strandline.kafka.connection import Connection
from strandline.kafka.listener import Listener, explained, spoken
from strandline.kafka.listing import Listing
from strandline.kafka.security import Security
from strandline.stack.kafka import KafkaCluster
from tests.support import TIMEOUT

NO_TLS = (
    "Kafka at {}: this listener does not speak TLS; set security.protocol to plaintext or sasl_plaintext, "
    "or give the port of one with TLS"
)
TLS = (
    "Kafka at {}: this listener speaks TLS, and we do not; set security.protocol to ssl or sasl_ssl "
    "(in a proxy's file: tls), or give the port of one without TLS"
)


def first(settings: dict[str, str]) -> str:
    """The address of the first broker."""
    return settings["bootstrap.servers"].split(",")[0]


async def by_our_own(settings: dict[str, str]) -> None:
    host, port = host_and_port(first(settings))
    opened = await Connection.open(host, port, Security.parse(settings), client_id="test", within=TIMEOUT)
    opened.close()


async def by_librdkafka(settings: dict[str, str]) -> None:
    await Listing.of(settings, "not-there", timedelta(seconds=2))


WAYS = pytest.mark.parametrize("reach", [by_our_own, by_librdkafka])
Reach = Callable[[dict[str, str]], Awaitable[None]]


@WAYS
@pytest.mark.parametrize("protocol", ["ssl", "SASL_SSL"])
def test_tls_to_a_listener_without_it_is_told(secure_kafka: KafkaCluster, reach: Reach, protocol: str) -> None:
    plain = secure_kafka.settings()
    settings = {**secure_kafka.secure_settings(), **plain, "security.protocol": protocol}
    with pytest.raises(WrongListener) as refusal:
        asyncio.run(reach(settings))  # type: ignore[arg-type]
    assert str(refusal.value) == NO_TLS.format(first(plain))


@WAYS
@pytest.mark.parametrize("protocol", ["plaintext", "sasl_plaintext"])
def test_no_tls_to_a_listener_with_it_is_told(secure_kafka: KafkaCluster, reach: Reach, protocol: str) -> None:
    settings = {**secure_kafka.secure_settings(), "security.protocol": protocol}
    with pytest.raises(WrongListener) as refusal:
        asyncio.run(reach(settings))  # type: ignore[arg-type]
    assert str(refusal.value) == TLS.format(first(settings))


def test_behind_an_address_that_does_not_fit_another_is_tried(secure_kafka: KafkaCluster) -> None:
    settings, plain = secure_kafka.secure_settings(), secure_kafka.settings()["bootstrap.servers"]

    async def ask() -> None:
        cluster = Cluster({**settings, "bootstrap.servers": f"{plain},{settings['bootstrap.servers']}"})
        try:
            await cluster.partitions(["not-there"])
        finally:
            cluster.close()

    with pytest.raises(UnknownTopic):
        asyncio.run(ask())


def test_who_speaks_as_the_listener_does_is_told_nothing(secure_kafka: KafkaCluster) -> None:
    for settings in (secure_kafka.settings(), secure_kafka.secure_settings()):
        away = NoBroker("b:1", "gone")
        assert explained(away, settings) is away
        asyncio.run(by_our_own(settings))
        with pytest.raises(UnknownTopic):
            asyncio.run(Listing.of(settings, "not-there"))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(8), b"\x16\x03\x03\x00\x02\x02P"])
def test_what_is_neither_is_not_known(answer: bytes) -> None:
    async def ask() -> Listener:
        async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(reply, "127.0.0.1", 0) as server:
            return await asyncio.to_thread(spoken, "127.0.0.1", server.sockets[0].getsockname()[1])

    assert asyncio.run(ask()) is Listener.UNKNOWN


def test_nobody_and_who_says_nothing_are_not_known() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert spoken("127.0.0.1", port) is Listener.UNKNOWN
        bound.listen()
        assert spoken("127.0.0.1", port, within=0.05) is Listener.UNKNOWN


def test_an_address_that_is_none_and_an_error_of_another_kind_stay_as_they_are() -> None:
    for error in (NoBroker("b", "gone"), KafkaError("something else")):
        assert explained(error, {"bootstrap.servers": "not an address,,", "security.protocol": "ssl"}) is error
        assert explained(error, {}) is error
