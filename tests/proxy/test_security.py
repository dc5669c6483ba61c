"""TLS and SASL at the proxy, and other credentials of its own at the clusters."""

import base64
import json
import os
import secrets
import signal
import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kio.schema.errors import ErrorCode

from strandline.stack.certificates import Authority
from strandline.stack.kafka import KafkaCluster
from strandline.stack.secure import is_let_in
from strandline.wire.scram import ScramClient
from tests.proxy.raw import METADATA, answer, metadata, request, text
from tests.proxy.support import (
    Proxied,
    Writer,
    configured,
    create,
    is_down,
    is_ready,
    lies_there,
    proxied,
    read,
    running,
    write,
)
from tests.support import TIMEOUT, wait_for

PASSWORD = "open, sesame"
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


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


@contextmanager
def encrypted(proxy: Proxied) -> Iterator[ssl.SSLSocket]:
    """A connection with TLS to where clients begin."""
    host, port = proxy.address.split(":")
    trust = ssl.create_default_context(cafile=str(proxy.config.with_name("authority.pem")))
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT) as plain,
        trust.wrap_socket(plain, server_hostname=host) as connection,
    ):
        yield connection


@contextmanager
def at_the_door(proxy: Proxied, mechanism: str) -> Iterator[ssl.SSLSocket]:
    """A connection that has said by which mechanism it wants to sign in."""
    with encrypted(proxy) as connection:
        connection.sendall(request(SASL_HANDSHAKE, 1, 1, text(mechanism)))
        assert answer(connection)[1][:2] == b"\0\0"
        yield connection


def authenticate(connection: ssl.SSLSocket, message: bytes) -> tuple[ErrorCode, str, bytes]:
    """Send a message of a mechanism: the error, its reason, and what the proxy says."""
    connection.sendall(request(SASL_AUTHENTICATE, 0, 2, struct.pack(">i", len(message)) + message))
    body = answer(connection)[1]
    code, size = struct.unpack_from(">hh", body)
    reason = body[4 : 4 + max(size, 0)].decode()
    return ErrorCode(code), reason, body[8 + max(size, 0) :]


def sign_in(connection: ssl.SSLSocket, mechanism: str, user: str, password: str) -> tuple[ErrorCode, str]:
    """Sign in with any name and password, also with empty ones, which client libraries do not send."""
    if mechanism == "PLAIN":
        return authenticate(connection, b"\0".join((b"", user.encode(), password.encode())))[:2]
    client = ScramClient(mechanism, user, password, secrets.token_hex(16))
    code, reason, challenge = authenticate(connection, client.first())
    if code is not ErrorCode.none:
        return code, reason
    proof = client.answer(challenge)
    assert proof is not None
    code, reason, signature = authenticate(connection, proof)
    if code is ErrorCode.none:
        assert client.answer(signature) is None
    return code, reason


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_who_signs_in_writes_and_reads_over_tls_on_both_sides(guarded: Proxied, mechanism: str) -> None:
    given = settings(guarded, mechanism)
    topic = f"guarded-{mechanism}"
    create(given, {topic: 2})
    # Several megabytes: more than TLS hands over at a time, or a socket takes.
    values = [f"{n}".ljust(20_000, "x") for n in range(300)]
    write(given, [(topic, value) for value in values])
    assert sorted((message.value() or b"").decode() for message in read(given, [topic], 300)) == sorted(values)


class Log:
    """The lines that a proxy logs from now on."""

    def __init__(self, proxy: Proxied) -> None:
        self._file = proxy.log
        self._begin = self._file.stat().st_size

    def lines(self, part: str) -> list[str]:
        """Those that have something in them."""
        return [line for line in self._file.read_bytes()[self._begin :].decode().splitlines() if part in line]


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("bob", PASSWORD), ("alice", " ")], ids=["password", "user", "blank"]
)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_client_of_librdkafka_that_does_not_know_the_password_is_told_that_it_is_wrong(
    guarded: Proxied, mechanism: str, user: str, password: str
) -> None:
    log, errors = Log(guarded), set[int]()
    given: dict[str, Any] = {**settings(guarded, mechanism, password, user)}
    given["error_cb"] = lambda error: errors.add(error.code())
    admin = AdminClient(given)

    def is_refused() -> bool:
        admin.poll(0.1)
        return KafkaError._AUTHENTICATION in errors

    wait_for(is_refused, "the client hears that its credentials are wrong")
    wait_for(lambda: log.lines(f"user '{user}' or its password is wrong"), "the proxy logs the reason")


@pytest.mark.parametrize("password", ["", " ", "wrong", PASSWORD[:-1], PASSWORD + " ", PASSWORD.upper()])
@pytest.mark.parametrize("user", ["alice", "bob", ""])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_only_the_whole_password_signs_in_and_an_empty_one_is_wrong(
    guarded: Proxied, mechanism: str, user: str, password: str
) -> None:
    log = Log(guarded)
    with at_the_door(guarded, mechanism) as connection:
        code, reason = sign_in(connection, mechanism, user, password)
        assert code is ErrorCode.sasl_authentication_failed
        # SCRAM has no message with an empty name.
        is_message = user or mechanism == "PLAIN"
        expected = f"user '{user}' or its password is wrong" if is_message else "first message is not one of SCRAM"
        assert reason.endswith(expected)
        assert connection.recv(1) == b"", "the proxy closes the connection"
    wait_for(lambda: log.lines(reason), "the proxy logs the reason")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_right_password_signs_in_by_the_same_bytes(guarded: Proxied, mechanism: str) -> None:
    with at_the_door(guarded, mechanism) as connection:
        assert sign_in(connection, mechanism, "alice", PASSWORD) == (ErrorCode.none, "")
        connection.sendall(metadata(7))
        assert answer(connection)[0] == 7


@pytest.mark.parametrize(("acts_as", "is_let_in"), [(b"", True), (b"alice", True), (b"bob", False), (b"\xff", False)])
def test_by_plain_a_user_acts_as_itself_alone(guarded: Proxied, acts_as: bytes, is_let_in: bool) -> None:
    with at_the_door(guarded, "PLAIN") as connection:
        code, reason, _ = authenticate(connection, b"\0".join((acts_as, b"alice", PASSWORD.encode())))
    if is_let_in:
        assert (code, reason) == (ErrorCode.none, "")
    else:
        assert (code, reason) == (
            ErrorCode.sasl_authentication_failed,
            "authentication failed: user 'alice' may not act as another user",
        )


def test_who_does_not_sign_in_is_not_answered(guarded: Proxied) -> None:
    log = Log(guarded)
    with encrypted(guarded) as connection:
        connection.sendall(metadata(7))
        assert connection.recv(1) == b"", "the proxy closes the connection without an answer"
    wait_for(lambda: log.lines("metadata before the client has signed in"), "the proxy logs the reason")


def test_certificates_of_a_cluster_are_read_again_with_the_file(
    secure_kafka: KafkaCluster, authority: Authority, tmp_path: Path
) -> None:
    given = secure_kafka.secure_settings("PLAIN")
    sasl = {"mechanism": "PLAIN", "username": given["sasl.username"], "password": given["sasl.password"]}
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(authority.certificate)
    only = {"bootstrap": given["bootstrap.servers"], "tls": {"ca": trusted.name}, "sasl": sasl}
    with proxied(tmp_path, only=only, ready=False) as proxy:
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
    with proxied(tmp_path, east=behind("PLAIN"), west=behind("SCRAM-SHA-256", password="wrong"), ready=False) as proxy:
        wait_for(lambda: not is_down(proxy, "east"), "the proxy signs in where its password is right")
        assert is_down(proxy, "west")
        write(proxy.settings(), [("mine", "c")])


def set_password(kafka: KafkaCluster, user: str, password: str) -> None:
    """Set a user's password for SCRAM-SHA-512 at a cluster, and wait until every broker takes it."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsert = UserScramCredentialUpsertion(user, info, password.encode())
    admin = AdminClient({**kafka.settings()})
    admin.alter_user_scram_credentials([upsert])[user].result(TIMEOUT)
    given = kafka.secure_settings("SCRAM-SHA-512")
    given |= {"sasl.username": user, "sasl.password": password, "group.id": "visitor"}
    for place in given["bootstrap.servers"].split(","):
        haste = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 0}
        visitor = Consumer({**given, **haste, "bootstrap.servers": place})
        wait_for(partial(is_let_in, visitor), f"{place} takes the password")
        visitor.close()


def signing_in(kafka: KafkaCluster, user: str, password: str) -> dict[str, Any]:
    """The section of a cluster at which the proxy signs in as a user."""
    given = kafka.secure_settings("SCRAM-SHA-512")
    sasl = {"mechanism": "SCRAM-SHA-512", "username": user, "password": password}
    return {"bootstrap": given["bootstrap.servers"], "tls": {"ca": given["ssl.ca.location"]}, "sasl": sasl}


def topic_error(proxy: Proxied, topic: str) -> int:
    """What Metadata says of a topic."""
    error = AdminClient(proxy.settings()).list_topics(topic, timeout=TIMEOUT).topics[topic].error
    return 0 if error is None else int(error.code())


@pytest.mark.parametrize("mended", ["in the file", "at the cluster"])
def test_a_cluster_that_refuses_the_proxys_password_is_down_alone_until_the_password_is_right(
    secure_kafka: KafkaCluster, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path, mended: str
) -> None:
    user, topic = f"proxy-{secrets.token_hex(4)}", f"signed-{secrets.token_hex(4)}"
    set_password(secure_kafka, user, "of the cluster")
    west = signing_in(secure_kafka, user, "of the file")
    with proxied(tmp_path, east=clusters[0].address, west=west, ready=False) as proxy:
        wait_for(lambda: not is_down(proxy, "east"), "the proxy finds the other cluster")
        assert is_down(proxy, "west")
        refusal = f"refuses user '{user}': Authentication failed"
        wait_for(lambda: refusal in proxy.log.read_text(), "the proxy logs the reason")
        # Clients are told to wait for the topics of that cluster, as for any that is down.
        assert topic_error(proxy, f"eu.{topic}") == KafkaError.LEADER_NOT_AVAILABLE
        with pytest.raises(KafkaException) as refused:
            create(proxy.settings(), {f"eu.{topic}": 1})
        assert refused.value.args[0].code() == KafkaError.REQUEST_TIMED_OUT
        assert "cluster west: it does not answer" in refused.value.args[0].str()
        create(proxy.settings(), {topic: 1})
        write(proxy.settings(), [(topic, f"{n}") for n in range(100)])
        assert len(read(proxy.settings(), [topic], 100)) == 100
        assert is_down(proxy, "west")
        logged = [line for line in proxy.log.read_text().splitlines() if refusal in line]
        assert len(logged) == 1, "one line, however often the proxy tries"
        if mended == "in the file":
            content = json.loads(proxy.config.read_text())
            content["clusters"]["west"]["sasl"]["password"] = "of the cluster"
            proxy.config.write_text(json.dumps(content))
            proxy.process.send_signal(signal.SIGHUP)
        else:
            set_password(secure_kafka, user, "of the file")
        wait_for(lambda: not is_down(proxy, "west"), "the proxy signs in")
        create(proxy.settings(), {f"eu.{topic}": 1})
        write(proxy.settings(), [(f"eu.{topic}", "a")])
        assert len(read(proxy.settings(), [topic, f"eu.{topic}"], 101)) == 101


def test_a_password_that_changes_at_the_cluster_ends_no_connection_and_new_ones_are_closed_until_it_is_right(
    secure_kafka: KafkaCluster, clusters: tuple[KafkaCluster, KafkaCluster], tmp_path: Path
) -> None:
    user, topic = f"proxy-{secrets.token_hex(4)}", f"changed-{secrets.token_hex(4)}"
    set_password(secure_kafka, user, "first")
    with proxied(tmp_path, east=clusters[0].address, west=signing_in(secure_kafka, user, "first")) as proxy:
        create(proxy.settings(), {topic: 1, f"eu.{topic}": 1})
        with Writer(proxy, f"eu.{topic}") as before:
            wait_for(lambda: before.acknowledged, "a connection is signed in")
            set_password(secure_kafka, user, "second")
            log = Log(proxy)
            with Writer(proxy, f"eu.{topic}") as late:
                wait_for(lambda: log.lines(f"refuses user '{user}'"), "the proxy logs why it closes a new connection")
                assert not late.acknowledged
                written = before.acknowledged.total()
                wait_for(lambda: before.acknowledged.total() > written + 10, "the connection from before goes on")
                write(proxy.settings(), [(topic, "a")])
                assert not log.lines("the broker closed the connection"), "another reason than the broker gave"
                set_password(secure_kafka, user, "first")
                wait_for(lambda: late.acknowledged, "the new client is served once the password is right again")
    # Both write the same numbers, each once.
    assert lies_there(secure_kafka, f"eu.{topic}", before.acknowledged + late.acknowledged)


# Read by every process of the proxy before its own code: no logger is less verbose than DEBUG.
VERBOSE = """
import logging
logging.getLogger().setLevel(logging.DEBUG)
logging.Logger.setLevel = lambda self, level: None
"""


class Secrets:
    """Passwords of a test. Each has a core of plain letters, which no way of quoting changes."""

    def __init__(self) -> None:
        self._cores: dict[str, bytes] = {}

    def plain(self, what: str) -> str:
        """A password of letters and digits."""
        core = secrets.token_hex(12)
        self._cores[what] = core.encode()
        return core

    def make(self, what: str) -> str:
        """A password that JSON, YAML, `repr` and URLs quote each in another way."""
        core = self.plain(what)
        return f"é\"'%\\ {core} \u2028"

    def found_in(self, output: bytes) -> set[str]:
        """Those that occur: as they are, in hexadecimal digits, or anywhere in what was encoded as base64."""
        return {what for what, core in self._cores.items() if any(form in output for form in _forms(core))}


def _forms(core: bytes) -> Iterator[bytes]:
    yield core
    yield core[::-1]
    yield core.hex().encode()
    yield core.hex().upper().encode()
    for before in range(3):
        # The digits that depend on nothing but the core, wherever in a message it stands.
        encoded = base64.b64encode(bytes(before) + core)
        yield encoded[4 if before else 0 : -4]


def test_every_form_of_a_secret_is_found() -> None:
    known = Secrets()
    password = known.make("a")
    forms = [
        password.encode(),
        repr(password).encode(),
        json.dumps(password).encode(),
        password.encode().hex().encode(),
    ]
    forms += [base64.b64encode(bytes(n) + password.encode()) for n in range(4)]
    forms += [base64.urlsafe_b64encode(b"\0user\0" + password.encode()), quote(password).encode()]
    assert [known.found_in(b"before " + form + b" after") for form in forms] == [{"a"}] * len(forms)
    assert known.found_in(Secrets().make("b").encode()) == set()


@pytest.mark.parametrize("workers", [1, 2])
def test_no_secret_is_in_anything_that_the_proxy_says(
    secure_kafka: KafkaCluster, authority: Authority, tmp_path: Path, workers: int
) -> None:
    known = Secrets()
    password, wrong, passphrase = (known.make(what) for what in ("a user's", "a wrong one of a user", "a passphrase"))
    behind, wrong_behind = known.make("the proxy's own"), known.make("a wrong one of the proxy's own")
    certificate, key = authority.issue("proxy", ["127.0.0.1"])
    locked = authority.issue("proxy", ["127.0.0.1"], passphrase)[1]
    files = {"proxy.pem": certificate, "proxy.key": key, "locked.key": locked, "authority.pem": authority.certificate}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    verbose = tmp_path / "verbose"
    verbose.mkdir()
    (verbose / "sitecustomize.py").write_text(VERBOSE)
    user = f"proxy-{secrets.token_hex(4)}"
    set_password(secure_kafka, user, behind)
    sections = {
        "listen": {"tls": {"certificate": "proxy.pem", "key": "proxy.key"}},
        "auth": {"users": {"alice": password}},
        "workers": workers,
    }
    file = configured(tmp_path, {"only": signing_in(secure_kafka, user, behind)}, **sections)
    with running(file, env={**os.environ, "PYTHONPATH": str(verbose), "PYTHONASYNCIODEBUG": "1"}) as proxy:
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            given = settings(proxy, mechanism, password)
            topic = f"secret-{secrets.token_hex(4)}"
            create(given, {topic: 1})
            write(given, [(topic, "a")])
            with at_the_door(proxy, mechanism) as connection:
                assert sign_in(connection, mechanism, "alice", wrong)[0] is ErrorCode.sasl_authentication_failed
            _send_what_is_no_sign_in(proxy, mechanism, password)
        _reload_files_that_cannot_be_used(proxy, known)
        # The cluster refuses the proxy; and then the proxy is given its password again.
        content = json.loads(proxy.config.read_text())
        content["clusters"]["only"]["sasl"]["password"] = wrong_behind
        proxy.config.write_text(json.dumps(content))
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: f"refuses user '{user}'" in proxy.log.read_text(), "the cluster refuses the proxy")
        content["clusters"]["only"]["sasl"]["password"] = behind
        proxy.config.write_text(json.dumps(content))
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda: is_ready(proxy), "the proxy serves again")
        pages = b""
        for page in ("metrics", "healthz", "readyz"):
            with urllib.request.urlopen(f"http://{proxy.pages}/{page}", timeout=TIMEOUT) as told:
                pages += told.read()
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(TIMEOUT) == 0
        assert proxy.process.stdout is not None
        logged = proxy.log.read_bytes()
        output = logged + pages + proxy.process.stdout.read().encode()
    # It has said something of all this, also what nobody is told by default.
    assert b'"level": "debug"' in logged
    for said in ("user 'alice' or its password is wrong", "is not one of PLAIN", "is not one of SCRAM"):
        assert said.encode() in logged
    assert known.found_in(output) == set()


def _send_what_is_no_sign_in(proxy: Proxied, mechanism: str, password: str) -> None:
    """Messages with the password in them that are none of the mechanism, each over a connection of its own."""
    right = b"\0alice\0" + password.encode()
    proof = ScramClient("SCRAM-SHA-256", "alice", password, "nonce").first()
    messages = [right[1:], right + b"\0more", right * 2, proof[2:], proof + right, right[::-1], b"\xff" + right]
    messages += [b"n,,n=alice,r=" + password.encode(), b"c=biws,r=x,p=" + base64.b64encode(right)]
    for message in messages:
        with at_the_door(proxy, mechanism) as connection:
            code, _, challenge = authenticate(connection, message)
            if code is ErrorCode.none:
                # Taken for the first message of SCRAM; the second is none.
                assert challenge
                code = authenticate(connection, message)[0]
            assert code is ErrorCode.sasl_authentication_failed
    # Requests that are cut, whose lengths lie, or that come before their time: the connection is closed.
    body = struct.pack(">i", len(right)) + right
    frames = {
        "a length that lies by one": request(SASL_AUTHENTICATE, 0, 2, struct.pack(">i", len(right) + 1) + right),
        "a negative length": request(SASL_AUTHENTICATE, 0, 2, struct.pack(">i", -7) + right),
        "a version that does not exist": request(SASL_AUTHENTICATE, 99, 2, body),
        "an API that does not exist": request(9999, 0, 2, body),
        "bytes without a header": struct.pack(">i", len(right)) + right,
        "a client id": struct.pack(">ihhi", 10 + len(right), METADATA, 1, 2) + struct.pack(">h", len(right)) + right,
    }
    for what, frame in frames.items():
        with at_the_door(proxy, mechanism) as connection:
            connection.sendall(frame)
            assert connection.recv(1) == b"", what
    # A mechanism that there is not, and a message before any.
    with encrypted(proxy) as connection:
        named = password.encode()
        connection.sendall(request(SASL_HANDSHAKE, 1, 1, struct.pack(">h", len(named)) + named))
        assert struct.unpack_from(">h", answer(connection)[1])[0] == ErrorCode.unsupported_sasl_mechanism.value
    with encrypted(proxy) as connection:
        assert authenticate(connection, right)[0] is ErrorCode.illegal_sasl_state


def _reload_files_that_cannot_be_used(proxy: Proxied, known: Secrets) -> None:
    """Have the proxy read files in which something is wrong where secrets are."""
    good = proxy.config.read_text()

    def changed(**sections: Any) -> str:
        return json.dumps({**json.loads(good), **sections})

    def secret(what: str) -> str:
        return known.make(f"in a file: {what}")

    def only(**more: Any) -> dict[str, Any]:
        return {"only": {**json.loads(good)["clusters"]["only"], **more}}

    sasl = {"mechanism": "PLAIN", "username": "x"}
    files = [
        changed(clusters=only(bootstrap=f"x:{secret('an address')}@127.0.0.1:1")),
        changed(clusters=only(sasl={**sasl, "password": [secret("a list")]})),
        changed(clusters=only(sasl={**sasl, "password": {secret("a key"): 1}})),
        changed(clusters=only(sasl={**sasl, "password": secret("a character") + "\0"})),
        changed(clusters=only(sasl={**sasl, "pasword": secret("a misspelt key")})),
        changed(auth={"users": f"alice:{secret('users')}"}),
        changed(auth={"users": [secret("a list of users")]}),
        changed(listen={**json.loads(good)["listen"], "tls": {"certificate": "proxy.pem", "key": "locked.key"}}),
        "auth: {users: {alice: *" + known.plain("an alias"),
        "auth: {users: {alice: !" + known.plain("a tag") + " 1}}",
        "auth: {users: {alice: !" + known.plain("a handle") + "!1}}",
        'auth: {users: {alice: "' + known.plain("no end"),
    ]
    for content in files:
        before = proxy.log.read_text().count("not reloaded")
        proxy.config.write_text(content)
        proxy.process.send_signal(signal.SIGHUP)
        wait_for(lambda before=before: proxy.log.read_text().count("not reloaded") > before, "the file is refused")  # type: ignore[misc]
    proxy.config.write_text(good)
