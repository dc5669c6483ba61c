"""TLS and SASL at the proxy, and other credentials of its own at the clusters."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from strandline.stack.certificates import Authority
from strandline.stack.kafka import KafkaCluster
from tests.proxy.support import Proxied, create, is_down, proxied, read, write
from tests.support import wait_for

PASSWORD = "open, sesame"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("proxy")


@pytest.fixture(scope="module")
def guarded(
    secure_kafka: KafkaCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxied]:
    """A proxy with TLS and users in front of a cluster of two brokers with TLS and SASL."""
    directory = Path(tmp_path_factory.mktemp("guarded"))
    certificate, key = authority.issue("proxy", ["127.0.0.1"])
    (directory / "proxy.pem").write_text(certificate)
    (directory / "proxy.key").write_text(key)
    (directory / "authority.pem").write_text(authority.certificate)
    behind = secure_kafka.secure_settings("SCRAM-SHA-512")
    cluster = {
        "bootstrap": behind["bootstrap.servers"],
        "tls": {"ca": behind["ssl.ca.location"]},
        "sasl": {
            "mechanism": "SCRAM-SHA-512",
            "username": behind["sasl.username"],
            "password": behind["sasl.password"],
        },
    }
    sections = {
        "listen": {"tls": {"certificate": "proxy.pem", "key": "proxy.key"}},
        "auth": {"users": {"alice": PASSWORD}},
    }
    with proxied(directory, sections=sections, only=cluster) as proxy:
        yield proxy


def settings(proxy: Proxied, mechanism: str, password: str = PASSWORD, user: str = "alice") -> dict[str, Any]:
    return {
        **proxy.settings(),
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(proxy.config.with_name("authority.pem")),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_signs_in_writes_and_reads_over_tls_on_both_sides(guarded: Proxied, mechanism: str) -> None:
    given = settings(guarded, mechanism)
    topic = f"guarded-{mechanism}"
    create(given, {topic: 2})
    # Several megabytes: more than TLS hands over at a time, or a socket takes.
    values = [f"{n}".ljust(20_000, "x") for n in range(300)]
    write(given, [(topic, value) for value in values])
    assert sorted((message.value() or b"").decode() for message in read(given, [topic], 300)) == sorted(values)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("bob", PASSWORD), ("alice", "")], ids=["password", "user", "empty"]
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_who_does_not_know_the_password_is_turned_away(
    guarded: Proxied, mechanism: str, user: str, password: str
) -> None:
    if not password and mechanism != "PLAIN":
        password = " "
    admin = AdminClient(settings(guarded, mechanism, password or " ", user))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    told = f"user '{user}' or its password is wrong"
    wait_for(lambda: told in guarded.log.read_text(), "the reason is told")
    assert PASSWORD not in guarded.log.read_text()


def test_who_does_not_sign_in_is_not_answered(guarded: Proxied) -> None:
    anonymous = {**settings(guarded, "PLAIN"), "security.protocol": "ssl"}
    with pytest.raises(KafkaException):
        AdminClient(anonymous).list_topics(timeout=3)
    wait_for(lambda: "before the client has signed in" in guarded.log.read_text(), "the reason is told")


def test_no_secret_is_in_the_log(guarded: Proxied, secure_kafka: KafkaCluster) -> None:
    assert secure_kafka.secure_settings()["sasl.password"] not in guarded.log.read_text()


def test_certificates_of_a_cluster_are_read_again_with_the_file(
    secure_kafka: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    given = secure_kafka.secure_settings("PLAIN")
    sasl = {"mechanism": "PLAIN", "username": given["sasl.username"], "password": given["sasl.password"]}
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.certificate)
    only = {"bootstrap": given["bootstrap.servers"], "tls": {"ca": trusted.name}, "sasl": sasl}
    with proxied(tmp_path, only=only) as proxy:
        assert is_down(proxy, "only")
        # The file of the same name has another certificate now, and nothing else has changed.
        trusted.write_text(Path(given["ssl.ca.location"]).read_text())
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: not is_down(proxy, "only"), "it is trusted")


def test_each_cluster_has_credentials_of_its_own(
    secure_kafka: KafkaCluster, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    def behind(mechanism: str, **wrong: str) -> dict[str, Any]:
        given = secure_kafka.secure_settings(mechanism)
        sasl = {"mechanism": mechanism, "username": given["sasl.username"], "password": given["sasl.password"]}
        return {
            "bootstrap": given["bootstrap.servers"],
            "tls": {"ca": given["ssl.ca.location"]},
            "sasl": {**sasl, **wrong},
        }

    # One asks who is there, the other does not know the user.
    with proxied(tmp_path, east=behind("SCRAM-SHA-256"), west=clusters[1].address) as proxy:
        create(proxy.settings(), {"mine": 1, "eu.mine": 1})
        write(proxy.settings(), [("mine", "a"), ("eu.mine", "b")])
        assert len(read(proxy.settings(), ["mine", "eu.mine"], 2)) == 2
    # What is wrong for the one is not made good by the other's.
    with proxied(tmp_path, east=behind("PLAIN"), west=behind("SCRAM-SHA-256", password="wrong")) as proxy:
        assert is_down(proxy, "west")
        assert not is_down(proxy, "east")
        write(proxy.settings(), [("mine", "c")])
