"""Settings that librdkafka does not take, told without their values; and what it says of Kafka, in our words."""

import logging
import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from strandline.errors import BrokerRefused, NoBroker, OptionError
from strandline.kafka import librdkafka
from strandline.kafka.librdkafka import AWAY, asking, client, translated
from tests.support import wait_for


@pytest.mark.parametrize(
    ("name", "value"), [("security.protocol", "hunter2"), ("retries", "hunter2"), ("no.such", "hunter2")]
)
def test_an_error_names_the_setting_and_not_its_value(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name.replace(".", r"\.")) as raised:
        client(Producer, {"bootstrap.servers": "127.0.0.1:1", name: value})
    assert value not in str(raised.value)


def test_an_error_about_a_setting_is_one_line() -> None:
    with pytest.raises(OptionError, match=r"session\.timeout\.ms") as raised:
        client(Producer, {"session.timeout.ms": 99_999_999})
    assert str(raised.value).splitlines() == [str(raised.value)]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and that nobody else is given."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_broker_that_is_away_is_told_with_its_address_and_what_to_do(nobody: str) -> None:
    with pytest.raises(NoBroker) as raised, asking(nobody):
        client(AdminClient, {"bootstrap.servers": nobody}).list_topics(timeout=0.2)
    assert str(raised.value) == (
        f"Kafka at {nobody}: no broker answers (Broker transport failure); "
        "start Kafka there, or name another address where this one came from "
        "(--kafka, STRANDLINE_KAFKA, a configuration file, or bootstrap.servers)"
    )


@pytest.mark.parametrize("code", sorted(AWAY))
def test_every_way_of_being_away_is_told_in_the_same_words(code: int) -> None:
    told = str(translated(Code(code), "topic", "127.0.0.1:1"))
    assert told.startswith("Kafka at 127.0.0.1:1: no broker answers (")


def test_no_answer_in_time_is_no_broker_too() -> None:
    with pytest.raises(NoBroker, match=r"no broker answers \(timed out\)"), asking("127.0.0.1:1"):
        raise TimeoutError


def test_what_is_waited_for_is_told_after_a_moment_and_not_before(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with asking("127.0.0.1:1"):
        pass
    assert not caplog.records
    monkeypatch.setattr(librdkafka, "PATIENCE_S", 0.0)
    with caplog.at_level(logging.WARNING), asking("127.0.0.1:1"):
        wait_for(lambda: bool(caplog.records), "it is told")
    assert caplog.messages == ["waiting for Kafka at 127.0.0.1:1 ..."]


def test_what_a_broker_refuses_is_no_absence() -> None:
    with pytest.raises(BrokerRefused, match="answers TOPIC_AUTHORIZATION_FAILED"), asking("127.0.0.1:1"):
        raise KafkaException(Code(Code.TOPIC_AUTHORIZATION_FAILED))
