"""librdkafka's options mean here what they mean there, and no secret shows itself."""

import socket
import ssl
import struct
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from strandline.config import Secret
from strandline.errors import AuthenticationFailed, OptionError
from strandline.kafka.security import NAMES, Sasl, Security
from strandline.stack import KafkaCluster
from strandline.stack.certificates import Authority
from tests.support import TIMEOUT

PASSWORD = "sea-salt-4711"
USER = {"sasl.username": "mo", "sasl.password": PASSWORD}
SCRAM = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-256", **USER}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("authority")


@pytest.fixture
def files(authority: Authority, tmp_path: Path) -> dict[str, str]:
    """The options of a client with a certificate, its key behind a password."""
    certificate, key = authority.issue("client", password="tide")
    for name, text in {"ca": authority.certificate, "certificate": certificate, "key": key}.items():
        (tmp_path / name).write_text(text)
    return {
        "security.protocol": "ssl",
        **{f"ssl.{name}.location": str(tmp_path / name) for name in ("ca", "certificate", "key")},
        "ssl.key.password": "tide",
    }


@pytest.fixture
def broker(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    return server(authority, tmp_path)


def server(authority: Authority, directory: Path) -> ssl.SSLContext:
    """A broker named broker.sea that asks for a certificate, from whomever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    both = directory / "both.pem"
    both.write_text("".join(authority.issue("broker", ["broker.sea"])))
    context.load_cert_chain(both)
    context.load_verify_locations(cadata=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def handshake(client: Security, server: ssl.SSLContext, hostname: str) -> ssl.SSLObject:
    """A TLS handshake in memory; the server's side of the connection."""
    assert client.tls is not None
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.tls.wrap_bio(theirs, ours, server_hostname=hostname),
        server.wrap_bio(ours, theirs, server_side=True),
    ]
    done = [False, False]
    while not all(done):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done[number] = True
            except ssl.SSLWantReadError:
                continue
    return ends[1]


def test_without_options_nothing_is_encrypted_and_nobody_named() -> None:
    assert Security.parse({}) == Security(tls=None, sasl=None)


@pytest.mark.parametrize("protocol", ["plaintext", "SSL", "sasl_PLAINTEXT", "Sasl_Ssl"])
def test_the_protocol_decides_what_is_used(protocol: str) -> None:
    security = Security.parse({**SCRAM, "security.protocol": protocol})
    assert (security.tls is not None) == protocol.lower().endswith("ssl")
    assert (security.sasl is not None) == protocol.lower().startswith("sasl")


def test_what_the_protocol_has_no_use_for_is_not_looked_at() -> None:
    unused = {"ssl.ca.location": "/nowhere", "sasl.mechanism": "GSSAPI", "bootstrap.servers": "here:1"}
    assert Security.parse(unused) == Security()


def test_tls_verifies_the_broker_and_its_name_unless_told_otherwise() -> None:
    def checks(**options: object) -> tuple[ssl.VerifyMode, bool]:
        names = {"verify": "enable.ssl.certificate.verification", "name": "ssl.endpoint.identification.algorithm"}
        tls = Security.parse({"security.protocol": "ssl", **{names[key]: value for key, value in options.items()}}).tls
        assert tls is not None
        assert tls.minimum_version is ssl.TLSVersion.TLSv1_2
        return tls.verify_mode, tls.check_hostname

    assert checks() == (ssl.CERT_REQUIRED, True)
    assert checks(verify=True, name="HTTPS") == (ssl.CERT_REQUIRED, True)
    assert checks(name="none") == (ssl.CERT_REQUIRED, False)
    assert checks(verify="F") == (ssl.CERT_NONE, False)
    assert checks(verify=False, name="none") == (ssl.CERT_NONE, False)


@pytest.mark.parametrize("as_text", [False, True], ids=["files", "strings"])
def test_both_ends_believe_each_other_by_files_and_by_strings(
    broker: ssl.SSLContext, files: dict[str, str], as_text: bool
) -> None:
    if as_text:
        for name in ("ca", "certificate", "key"):
            files[f"ssl.{name}.pem"] = Path(files.pop(f"ssl.{name}.location")).read_text()
    found = handshake(Security.parse(files), broker, "broker.sea").getpeercert()
    assert found is not None
    assert (("commonName", "client"),) in found["subject"]


def test_another_name_is_refused_unless_told_otherwise(broker: ssl.SSLContext, files: dict[str, str]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(Security.parse(files), broker, "other.sea")
    handshake(Security.parse({**files, "ssl.endpoint.identification.algorithm": "none"}), broker, "other.sea")


def test_another_authority_is_refused_unless_told_otherwise(files: dict[str, str], tmp_path: Path) -> None:
    stranger = server(Authority("stranger"), tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(Security.parse(files), stranger, "broker.sea")
    stranger.verify_mode = ssl.CERT_NONE
    handshake(Security.parse({**files, "enable.ssl.certificate.verification": "false"}), stranger, "broker.sea")


def test_the_string_counts_where_there_is_a_file_too(
    authority: Authority, broker: ssl.SSLContext, files: dict[str, str]
) -> None:
    certificate, key = authority.issue("other")
    security = Security.parse({**files, "ssl.certificate.pem": certificate, "ssl.key.pem": key})
    found = handshake(security, broker, "broker.sea").getpeercert()
    assert found is not None
    assert (("commonName", "other"),) in found["subject"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"security.protocol": "tls"}, "security.protocol takes plaintext, .*, not 'tls'"),
        ({"security.protocol": ""}, "security.protocol takes"),
        (
            {"enable.ssl.certificate.verification": "yes"},
            "enable.ssl.certificate.verification takes true, .*, not 'yes'",
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, "ssl.endpoint.identification.algorithm takes https, none"),
        ({**SCRAM, "sasl.mechanism": "scram-sha-256"}, "sasl.mechanism 'scram-sha-256' is not supported"),
        ({**SCRAM, "sasl.mechanisms": "GSSAPI"}, "sasl.mechanism 'GSSAPI' is not supported"),
        ({**SCRAM, "sasl.mechanism": None}, "sasl.mechanism is missing; valid are PLAIN, SCRAM-SHA-256"),
        ({**SCRAM, "sasl.username": ""}, "sasl.username is missing; SCRAM-SHA-256 needs it"),
        ({**SCRAM, "sasl.password": ""}, "sasl.password is missing; SCRAM-SHA-256 needs it"),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/nowhere"},
            "ssl.ca.location: /nowhere cannot be read: No such",
        ),
        ({"security.protocol": "ssl", "ssl.ca.location": "/dev/null"}, "ssl.ca.location: /dev/null holds no PEM"),
        ({"security.protocol": "ssl", "ssl.ca.pem": "junk"}, "ssl.ca.pem holds no PEM certificate"),
        ({"ssl.ca.locaton": "/x"}, r"ssl.ca.locaton is not supported; did you mean 'ssl.ca.location'\?"),
    ],
)
def test_what_librdkafka_refuses_is_refused_in_one_line_that_names_the_option(
    options: dict[str, str | None], problem: str
) -> None:
    with pytest.raises(OptionError, match=f"^{problem}") as refusal:
        Security.parse(options)
    assert "\n" not in str(refusal.value)
    assert PASSWORD not in str(refusal.value)
    with pytest.raises(KafkaException):
        Producer({**options, "log_level": 0})


@pytest.mark.parametrize(
    "options",
    [
        {"security.protocol": " Plaintext", "ssl.ca.location": "/nowhere"},
        {"security.protocol": "ssl", "ssl.ca.location": "", "ssl.key.password": ""},
        {"security.protocol": "ssl", "ssl.ca.location": "probe", "enable.ssl.certificate.verification": "T"},
        {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", **USER},
        {"security.protocol": "sasl_ssl", "sasl.mechanisms": "GSSAPI", "sasl.mechanism": "SCRAM-SHA-512", **USER},
        {"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "None", "sasl.password": None},
    ],
)
def test_what_librdkafka_takes_is_taken(options: dict[str, str | None]) -> None:
    Security.parse(options)
    Producer({**options, "log_level": 0})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ssl.key.location": "/nowhere"}, "ssl.key.location: /nowhere cannot be read: No such file"),
        ({"ssl.key.location": "/"}, "ssl.key.location: / cannot be read: Is a directory"),
        ({"ssl.certificate.location": "/nowhere"}, "ssl.certificate.location: /nowhere cannot be read: No such file"),
        ({"ssl.certificate.pem": "junk"}, "ssl.certificate.pem holds no PEM certificate"),
        ({"ssl.key.pem": "junk"}, "ssl.key.pem is no PEM key, or ssl.key.password does not open it"),
        ({"ssl.key.password": PASSWORD}, "ssl.key.location: .* is no PEM key, or ssl.key.password does not open it"),
        ({"ssl.key.password": ""}, "ssl.key.location: .* is no PEM key, or ssl.key.password does not open it"),
        ({"ssl.key.password": PASSWORD * 100}, "ssl.key.location: .* cannot be read: password cannot be longer"),
        ({"ssl.key.location": None}, "ssl.certificate.location is of no use without ssl.key"),
        ({"ssl.certificate.location": None}, "ssl.key.location is of no use without ssl.certificate"),
    ],
)
def test_a_key_or_certificate_that_cannot_be_used_is_named(
    files: dict[str, str], change: dict[str, str], problem: str
) -> None:
    with pytest.raises(OptionError, match=f"^{problem}") as refusal:
        Security.parse({**files, **change})
    assert PASSWORD not in str(refusal.value)


def test_the_key_of_another_certificate_is_refused(authority: Authority, files: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"^ssl.key.pem is not the key of ssl.certificate.location$"):
        Security.parse({**files, "ssl.key.pem": authority.issue("other")[1]})


@pytest.mark.parametrize("value", ["a\0b", "a\udcffb"])
def test_a_name_that_cannot_be_sent_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match=r"^sasl.username holds a character that cannot be sent$"):
        Security.parse({**SCRAM, "sasl.username": value})


def test_no_secret_shows_itself() -> None:
    security = Security.parse({**SCRAM, "sasl.password": Secret(PASSWORD)})
    assert security.sasl is not None
    assert security.sasl.password.reveal() == PASSWORD
    assert PASSWORD not in repr(security)


def test_plain_is_complete_at_the_first_empty_answer() -> None:
    client = Sasl(mechanism="PLAIN", username="mo", password=Secret(PASSWORD)).client()
    assert client.first() == b"\0mo\0" + PASSWORD.encode()
    assert client.answer(b"") is None
    with pytest.raises(AuthenticationFailed, match="with a challenge"):
        client.answer(b"and now?")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_scram_client_has_a_nonce_of_its_own(mechanism: str) -> None:
    sasl = Sasl(mechanism=mechanism, username="mo", password=Secret(PASSWORD))
    greetings = {sasl.client().first() for _ in range(100)}
    assert len(greetings) == 100
    assert all(greeting.startswith(b"n,,n=mo,r=") for greeting in greetings)


class Connection:
    """Just enough of Kafka's protocol to log in."""

    def __init__(self, settings: dict[str, str]) -> None:
        security = Security.parse(settings)
        assert security.tls is not None
        assert security.sasl is not None
        host, port = settings["bootstrap.servers"].split(",")[0].split(":")
        self.socket = security.tls.wrap_socket(
            socket.create_connection((host, int(port)), TIMEOUT), server_hostname=host
        )
        self.sasl = security.sasl

    def ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih", api, version, 7, -1) + body
        self.socket.sendall(struct.pack(">i", len(request)) + request)
        reader = self.socket.makefile("rb")
        answer = reader.read(int.from_bytes(reader.read(4), "big"))
        assert answer[:4] == struct.pack(">i", 7)
        return answer[4:]

    def log_in(self) -> None:
        name = self.sasl.mechanism.encode()
        assert self.ask(17, 1, struct.pack(">h", len(name)) + name)[:2] == b"\0\0"
        client = self.sasl.client()
        message: bytes | None = client.first()
        while message is not None:
            answer = self.ask(36, 0, struct.pack(">i", len(message)) + message)
            error, length = struct.unpack_from(">hh", answer)
            end = 4 + max(length, 0)
            if error:
                raise AuthenticationFailed(answer[4:end].decode())
            message = client.answer(answer[end + 4 :])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_real_broker_lets_our_own_clients_in_and_proves_itself(secure_kafka: KafkaCluster, mechanism: str) -> None:
    connection = Connection(secure_kafka.secure_settings(mechanism))
    with connection.socket:
        connection.log_in()
        # ListGroups, which a broker answers only to who has logged in; to others it hangs up.
        assert connection.ask(16, 1, b"")[4:6] == b"\0\0"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_real_broker_refuses_a_wrong_password(secure_kafka: KafkaCluster, mechanism: str) -> None:
    connection = Connection({**secure_kafka.secure_settings(mechanism), "sasl.password": PASSWORD})
    with connection.socket, pytest.raises(AuthenticationFailed, match="Authentication failed") as refusal:
        connection.log_in()
    assert PASSWORD not in str(refusal.value)


def test_every_name_is_one_of_librdkafkas() -> None:
    values = {"security.protocol": "plaintext", "enable.ssl.certificate.verification": "true"}
    for name in NAMES:
        value = "https" if name.endswith("algorithm") else values.get(name, "PLAIN")
        Producer({name: value, "log_level": 0})
