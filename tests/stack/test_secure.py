"""The secure listener lets in who has the password, nobody else, and changes nothing for the plain one."""

import socket
import ssl
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.errors import OptionError
from strandline.stack import KafkaCluster, Stack
from strandline.stack.kafka import kafka_runtime
from strandline.stack.ports import LOOPBACK, free_port
from tests.support import TIMEOUT, read_records, wait_for, write_records
from tests.topics import create_topics

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


def write(settings: Mapping[str, str], topic: str, values: Sequence[bytes], partition: int = 0) -> None:
    write_records(settings["bootstrap.servers"], topic, values, partition, settings=settings)


def read(settings: Mapping[str, str], topic: str, count: int, partition: int = 0) -> list[bytes]:
    return read_records(settings["bootstrap.servers"], topic, count, partition, settings=settings)


def first_error(settings: Mapping[str, str]) -> KafkaError:
    """What a client that is not let in gets to hear."""
    heard: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": heard.append, "log_level": 0})

    def has_heard() -> bool:
        producer.poll(0.1)
        return bool(heard)

    wait_for(has_heard, "the client hears that it is not let in")
    return heard[0]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_broker_lets_in_who_has_the_password(secure_kafka: KafkaCluster, mechanism: str) -> None:
    settings = secure_kafka.secure_settings(mechanism)
    topic = f"secure-{mechanism.lower()}"
    create_topics(settings, NewTopic(topic, 2, replica_assignment=[[1], [2]]))
    partitions = AdminClient({**settings}).list_topics(topic, timeout=TIMEOUT).topics[topic].partitions
    assert sorted(partition.leader for partition in partitions.values()) == [1, 2], "each broker leads a partition"
    for partition in (0, 1):
        write(settings, topic, [b"one", b"two"], partition)
        assert read(settings, topic, 2, partition) == [b"one", b"two"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("wrong", ["sasl.password", "sasl.username"])
def test_who_has_another_password_or_name_is_refused(secure_kafka: KafkaCluster, mechanism: str, wrong: str) -> None:
    error = first_error({**secure_kafka.secure_settings(mechanism), wrong: "somebody-else"})
    assert error.code() == KafkaError._AUTHENTICATION
    assert "SASL authentication error" in error.str()


def test_a_client_that_does_not_know_the_authority_does_not_believe_the_broker(secure_kafka: KafkaCluster) -> None:
    settings = secure_kafka.secure_settings()
    del settings["ssl.ca.location"]
    # By code librdkafka says SSL, or TRANSPORT when it sees first that the connection ended on that.
    assert "certificate verify failed" in first_error(settings).str()


def test_the_certificate_is_for_this_machine_and_strictly_valid(secure_kafka: KafkaCluster) -> None:
    settings = secure_kafka.secure_settings()
    context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for address in settings["bootstrap.servers"].split(","):
        host, port = address.split(":")
        for name in (LOOPBACK, "localhost"):
            with context.wrap_socket(
                socket.create_connection((host, int(port)), TIMEOUT), server_hostname=name
            ) as connection:
                assert connection.getpeercert()


def test_the_plain_listener_works_as_ever(secure_kafka: KafkaCluster) -> None:
    write_records(secure_kafka.address, "plain", [b"one"])
    assert read_records(secure_kafka.address, "plain", 1) == [b"one"]
    assert read(secure_kafka.secure_settings(), "plain", 1) == [b"one"]
    assert secure_kafka.settings() == {"bootstrap.servers": secure_kafka.address}


def test_the_password_is_in_private_files_and_on_no_command_line(secure_kafka: KafkaCluster) -> None:
    password = secure_kafka.secure_settings()["sasl.password"]
    holders = [p for p in secure_kafka.directory.rglob("*") if p.is_file() and password.encode() in p.read_bytes()]
    keys = [p for p in secure_kafka.directory.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert {path.name for path in holders} == {"password", "broker-1.properties", "broker-2.properties"}
    assert {path.name for path in keys} == {"broker.pem"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holders + keys} == {0o600}
    for broker in secure_kafka.brokers:
        assert password not in Path(f"/proc/{broker.pid}/cmdline").read_text()
        assert password not in Path(f"/proc/{broker.pid}/environ").read_text()


@pytest.mark.soak
def test_kept_data_serves_the_same_user_again_and_takes_one_later(open_dir: Path) -> None:
    data = open_dir / "quo'te\"s, back\\slash = k\u00fcste"
    with Stack(["kafka"], data=data) as stack:
        write_records(stack.kafka[0].address, "kept", [b"plain"])
    with Stack(["kafka"], kafka_secure=True, data=data) as stack:
        before = stack.kafka[0].secure_settings()
        write(before, "kept", [b"secure"])
    with Stack(["kafka"], kafka_secure=True, data=data) as stack:
        for mechanism in MECHANISMS:
            after = stack.kafka[0].secure_settings(mechanism)
            differ = {"bootstrap.servers", "sasl.mechanism"}
            assert {k: v for k, v in after.items() if k not in differ} == {
                k: v for k, v in before.items() if k not in differ
            }
            assert read(after, "kept", 2) == [b"plain", b"secure"]
        cluster, broker = stack.kafka[0], stack.kafka[0].brokers[0]
        cluster.stop()
        broker.start()
        cluster.wait_ready()
        assert read(cluster.secure_settings(), "kept", 2) == [b"plain", b"secure"]


def test_a_secure_port_that_is_taken_between_choosing_and_binding_is_chosen_anew(open_dir: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as stranger:
        taken = int(stranger.getsockname()[1])
        chosen = iter([free_port(), free_port(), taken])
        cluster = KafkaCluster(
            "kafka",
            open_dir / "kafka",
            secure=True,
            temporary=True,
            choose_port=lambda: next(chosen, None) or free_port(),
        )
        try:
            cluster.start(kafka_runtime(Event()), Event())
            assert next(chosen, None) is None
            assert str(taken) not in cluster.secure_settings()["bootstrap.servers"]
        finally:
            cluster.stop()


def test_settings_that_cannot_be_given_are_refused(kafka: KafkaCluster, secure_kafka: KafkaCluster) -> None:
    with pytest.raises(OptionError, match="kafka has no secure listener; it was not started with secure=True"):
        kafka.secure_settings()
    with pytest.raises(OptionError, match=r"mechanism 'SCRAM-SHA-1' is unknown; did you mean 'SCRAM-SHA-"):
        secure_kafka.secure_settings("SCRAM-SHA-1")
