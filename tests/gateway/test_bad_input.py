"""What is wrong, too much or meant ill: each has a code, and somebody beside it goes on hearing every record."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from uuid import uuid4

import pytest

from strandline.stack import KafkaCluster
from tests.gateway.bystander import Bystander
from tests.gateway.raw import CONT, PING, TEXT, Raw, beside, frame, greeted, header, hear, request, say, until
from tests.gateway.support import write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT, wait_for

LIMITS = {"cold_every_s": 3600, "messages_per_s": 200}


@pytest.fixture(scope="module")
def topic(kafka: KafkaCluster) -> str:
    name = f"bad-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    write(kafka.address, name, [(0, "old", n) for n in range(2000)])
    return name


@pytest.fixture(scope="module")
def port(kafka: KafkaCluster, topic: str) -> Iterator[int]:
    with beside(kafka.address, [topic], recent_bytes=1 << 20, limits=LIMITS) as port:
        yield port


@pytest.fixture
def bystander(kafka: KafkaCluster, topic: str, port: int) -> Iterator[Bystander]:
    with Bystander(kafka.address, topic, port) as bystander:
        yield bystander


def flood(raw: Raw, sent: bytes) -> None:
    """Send what the gateway does not read to its end: it may have closed the connection before all is sent."""
    with suppress(ConnectionError):
        raw.send(sent)


POSITIONS = '{"type":"resume","data":{"channels":["a"],"positions":%s}}'
WRONG = {
    "": "bad_json",
    "{": "bad_json",
    "[" * 30_000: "bad_message",
    '{"type":"ping","data":%s' % ("[" * 30_000): "bad_json",
    '{"type":"ping"} {}': "bad_json",
    '{"type":"subscribe","data":{"channels":["\\ud800"]}}': "bad_json",
    "null": "bad_message",
    "[]": "bad_message",
    "{}": "bad_message",
    '{"type":7}': "unknown_type",
    '{"type":"fly"}': "unknown_type",
    '{"type":"message"}': "unknown_type",
    '{"type":"subscribe"}': "bad_message",
    '{"type":"subscribe","data":[]}': "bad_message",
    '{"type":"subscribe","data":{"channels":"a"}}': "bad_message",
    '{"type":"subscribe","data":{"channels":[1]}}': "bad_message",
    '{"type":"subscribe","data":{"channels":[""]}}': "bad_message",
    '{"type":"subscribe","data":{"channels":["%s"]}}' % ("a" * 513): "bad_message",
    POSITIONS % '{"TOPIC":{"0":-1}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":9223372036854775808}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":"9223372036854775808"}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":"99999999999999999999"}}': "bad_message",
    POSITIONS % ('{"TOPIC":{"0":1%s}}' % ("0" * 5000)): "bad_message",
    POSITIONS % '{"TOPIC":{"0":1e400}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":1.5}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":true}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":null}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":[1]}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":" 1"}}': "bad_message",
    POSITIONS % '{"TOPIC":{"0":"\\u0661"}}': "bad_message",
    POSITIONS % '{"TOPIC":{"-1":1}}': "bad_message",
    POSITIONS % '{"TOPIC":{"x":1}}': "bad_message",
    POSITIONS % '{"TOPIC":{"\\u0660":1}}': "bad_message",
    POSITIONS % '{"TOPIC":{"7":1}}': "unknown_partition",
    POSITIONS % '{"TOPIC":7}': "bad_message",
    POSITIONS % '{"another":{"0":1}}': "unknown_topic",
    POSITIONS % '{"__consumer_offsets":{"0":1}}': "unknown_topic",
    '{"type":"resume","data":{"channels":["a"],"since":-1}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"since":1e300}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"since":1,"token":"x"}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"credit":0}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"credit":99999999}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"token":5}}': "bad_message",
    '{"type":"resume","data":{"channels":["a"],"token":"x.y"}}': "token_malformed",
    '{"type":"resume","data":{"channels":["a"],"token":"é.ü"}}': "token_malformed",
    '{"type":"resume","data":{"channels":["a"],"client_id":"%s"}}' % ("a" * 129): "bad_message",
    '{"type":"reconnect","data":{"last_offset":{"TOPIC":-2}}}': "bad_message",
    '{"type":"reconnect","data":{"last_offset":{"TOPIC":"x"}}}': "bad_message",
    '{"type":"reconnect","data":{"last_offset":{"TOPIC":{"0":9223372036854775808}}}}': "bad_message",
    '{"type":"reconnect","data":{"last_offset":{"another":1}}}': "unknown_topic",
    '{"type":"ack","data":{"credit":-1}}': "bad_message",
    '{"type":"auth","data":{"token":"x"}}': "not_allowed",
}


def test_every_wrong_message_has_its_code_and_the_connection_goes_on(
    port: int, topic: str, bystander: Bystander
) -> None:
    with greeted(port) as raw:
        say(raw, "resume")
        assert until(raw, "error")["code"] == "no_channels"
        say(raw, "subscribe", channels=["nothing"])
        until(raw, "subscribed")
        found = {}
        for text in WRONG:
            raw.send(frame(TEXT, text.replace("TOPIC", topic).encode()))
            found[text] = until(raw, "error", "reconnect_error", "resume_ack", "reconnect_ack").get("code")
        assert found == WRONG
        bystander.hears_more()
        say(raw, "ping")
        assert until(raw, "pong") == {"type": "pong"}


def test_a_frame_of_ten_megabytes_is_refused_before_it_has_come(port: int, bystander: Bystander) -> None:
    for sent in (frame(TEXT, b" " * 10_000_000), header(TEXT, 10_000_000) + b"    " + b" " * 100):
        with greeted(port) as raw:
            flood(raw, sent)
            assert hear(raw) == {"closed": 1009}
            bystander.hears_more()
    with greeted(port) as raw:
        # The same by and by.
        flood(raw, frame(TEXT, b" ", fin=False) + frame(CONT, b" " * 1000, fin=False) * 10_000)
        assert hear(raw) == {"closed": 1009}


@pytest.mark.parametrize("end", ["", "*"], ids=["names", "beginnings"])
def test_ten_thousand_subscriptions_are_too_many(port: int, bystander: Bystander, end: str) -> None:
    with greeted(port) as raw:
        answers = []
        for low in range(0, 10_000, 500):
            say(raw, "subscribe", channels=[f"{n}.{'x' * (n % 50)}{end}" for n in range(low, low + 500)])
            answers.append(until(raw, "subscribed", "error").get("code", "subscribed"))
        assert answers == ["subscribed"] * 2 + ["too_many_subscriptions"] * 18
        bystander.hears_more()
        # Over and over again.
        for low in range(0, 10_000, 1000):
            channels = [f"{n}.{end}" for n in range(low, low + 400)]
            say(raw, "unsubscribe", channels=channels)
            say(raw, "subscribe", channels=channels)
        bystander.hears_more()


def test_a_flood_of_replays_from_kafka_is_put_off(port: int, topic: str, bystander: Bystander) -> None:
    with greeted(port) as first, greeted(port) as second:
        asked = {"channels": ["old"], "positions": {topic: {"0": 0}}, "client_id": "flood"}
        say(first, "resume", **asked)
        assert until(first, "resume_ack", "error")["status"] == "partial"
        for _ in range(150):
            say(second, "resume", **asked)
            told = until(second, "error", "resume_ack")
            assert told["code"] == "replay_limited"
            assert 0 < told["retry_after"] <= 3600
        bystander.hears_more()


def test_a_flood_of_replays_from_memory_harms_nobody(port: int, topic: str, bystander: Bystander) -> None:
    with greeted(port) as raw:
        say(raw, "subscribe", channels=["nothing"])
        place = until(raw, "subscribed")["positions"][topic]["0"]
        before = len(bystander.seen)
        wait_for(lambda: len(bystander.seen) > before + 50, "there is something to replay")
        for number in range(190):
            # More channels each time, so that all has to be gone through again.
            channels = ["bystander", f"nothing {number}.*"]
            say(raw, "resume", channels=channels, positions={topic: {"0": place}}, credit=1_000_000)
        bystander.hears_more()
        told = until(raw, "resume_ack")
        assert told["status"] == "completed"
        assert told["messages_replayed"] >= 50


def test_messages_without_end_close_the_connection(port: int, bystander: Bystander) -> None:
    with greeted(port) as raw:
        flood(raw, frame(TEXT, b'{"type":"ping"}') * 2000)
        assert until(raw, "never") == {"closed": 4029}
        bystander.hears_more()


@pytest.mark.parametrize(
    "sent",
    [frame(PING, b"x" * 125), frame(TEXT, b'{"type":"subscribe","data":{"channels":["a"]}}')],
    ids=["pings", "questions"],
)
def test_who_asks_without_end_and_reads_nothing_is_cut_off(kafka: KafkaCluster, topic: str, sent: bytes) -> None:
    with (
        beside(kafka.address, [topic], limits={"messages_per_s": 10_000_000, "queue_bytes": 65_536}) as port,
        Bystander(kafka.address, topic, port) as bystander,
        greeted(port, receive_bytes=4096) as raw,
    ):
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for number in range(1_000_000):
                raw.send(sent * 20)
                if number % 1000 == 100:
                    bystander.hears_more()
        bystander.hears_more()


def test_a_flood_of_connections_is_turned_away_and_harms_nobody_who_is_connected(
    kafka: KafkaCluster, topic: str
) -> None:
    limits = {"connections_per_address": 20, "handshake_s": 600}
    with (
        beside(kafka.address, [topic], limits=limits) as port,
        Bystander(kafka.address, topic, port) as bystander,
        ExitStack() as held,
    ):
        # Half of them never say anything.
        for _ in range(10):
            held.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
            held.enter_context(Raw(port, request()))
        answers = []
        for number in range(200):
            with Raw(port, request()) as raw:
                answers.append(raw.head())
            if number % 50 == 0:
                bystander.hears_more()
        assert {head.partition("\r\n")[0] for head in answers} == {"HTTP/1.1 503 Service Unavailable"}
        assert all("\r\nRetry-After: " in head for head in answers)
        bystander.hears_more()


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\r\n", b"no request\r\n" + b"x" * 20_000, b"GET / HTTP/1.1\r\nno header\r\n\r\n"]
)
@pytest.mark.usefixtures("bystander")
def test_what_is_no_request_is_answered_in_words(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as raw:
        raw.sendall(sent)
        answer = b""
        while data := raw.recv(1000):
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\nthis is no request of HTTP\n")


def test_fragments_without_end_are_no_message(port: int, bystander: Bystander) -> None:
    with greeted(port) as raw:
        flood(raw, frame(TEXT, b"", fin=False) + frame(CONT, b"", fin=False) * 100_000)
        assert until(raw, "never") == {"closed": 4029}
        bystander.hears_more()
