"""The embedded Kafka's listener with TLS and SASL: its certificate, its user, and what either end is told of them."""

import secrets
import shutil
from pathlib import Path

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from strandline.errors import FetchFailed, OptionError, did_you_mean
from strandline.stack.data import write_private
from strandline.stack.ports import LOOPBACK

LISTENER = "SASL_SSL"
USER = "strandline"
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
MECHANISMS = ("PLAIN", *SCRAM)
ITERATIONS = 4096
HOSTS = (LOOPBACK, "localhost")
LOGIN_MODULES = "org.apache.kafka.common.security"
ADD_TIMEOUT = 10.0
VISIT_TIMEOUT = 2.0


class SecureListener:
    """One for all brokers of a cluster; its files are kept with the cluster's data."""

    def __init__(self, directory: Path) -> None:
        self._files = directory / "secure"
        self._password = ""

    def prepare(self) -> None:
        """Make certificate and password where there are none yet, all or nothing."""
        if not self._files.exists():
            fresh = self._files.with_suffix(".new")
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir(mode=0o700)
            self._make(fresh)
            fresh.rename(self._files)
        self._password = (self._files / "password").read_text()

    def _make(self, directory: Path) -> None:
        try:
            from strandline.stack.certificates import Authority  # noqa: PLC0415  (only with the stack's extra)
        except ImportError as error:
            raise FetchFailed("cryptography", "it is not installed: pip install 'strandline[stack]'") from error
        authority = Authority("strandline")
        (directory / "authority.pem").write_text(authority.certificate)
        certificate, key = authority.issue("kafka", HOSTS)
        write_private(directory / "broker.pem", key + certificate + authority.certificate)
        write_private(directory / "password", secrets.token_urlsafe(24))

    def broker_settings(self) -> dict[str, str]:
        """What a broker is told, besides the port. It holds the password, so it goes into private files only."""
        plain = f'{LOGIN_MODULES}.plain.PlainLoginModule required user_{USER}="{self._password}";'
        scram = f"{LOGIN_MODULES}.scram.ScramLoginModule required;"
        settings = {
            "ssl.keystore.type": "PEM",
            # Below the broker's own directory, like its data.
            "ssl.keystore.location": f"{self._files.name}/broker.pem",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "plain.sasl.jaas.config": plain,
            **{f"{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM},
        }
        return {f"listener.name.{LISTENER.lower()}.{key}": value for key, value in settings.items()}

    def client_settings(self, bootstrap: str, mechanism: str) -> dict[str, str]:
        """What a client is told, in librdkafka's names."""
        if mechanism not in MECHANISMS:
            raise OptionError(f"mechanism '{mechanism}' is unknown; {did_you_mean(mechanism, MECHANISMS)}")
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": LISTENER,
            "ssl.ca.location": str(self._files.absolute() / "authority.pem"),
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": self._password,
        }

    def add_user(self, bootstrap: str) -> None:
        """Have a cluster that serves know our user by SCRAM, whether or not it did before.

        The user of PLAIN is in the brokers' settings. For SCRAM, the tool that formats a broker would take the password
        on its command line, where every process can read it; this sends it salted.
        """
        client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for mechanism in SCRAM.values():
            info = ScramCredentialInfo(mechanism, ITERATIONS)
            wanted: UserScramCredentialAlteration = UserScramCredentialUpsertion(USER, info, self._password.encode())
            # One request each: the controller refuses a user that is twice in one, even by another mechanism.
            client.alter_user_scram_credentials([wanted], request_timeout=ADD_TIMEOUT)[USER].result()

    def visitor(self, address: str) -> Consumer:
        """A client of one broker, to find out whether it lets us in. It tries again soon when it does not."""
        # By the mechanism that was added last: a broker learns of both in that order.
        haste = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}
        return Consumer({**self.client_settings(address, MECHANISMS[-1]), **haste, "group.id": "strandline-ready"})


def is_let_in(visitor: Consumer) -> bool:
    """Whether a broker has let a visitor in."""
    try:
        visitor.list_topics(timeout=VISIT_TIMEOUT)
    except KafkaException:
        return False
    return True
