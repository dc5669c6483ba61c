"""Postgres over TLS: who it is is verified where the connection string says so, and rows of any size come through."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from strandline.cdc.session import Session
from strandline.errors import PostgresUnreachable
from strandline.stack.certificates import Authority
from tests.cdc.support import Place, take_until
from tests.support import TIMEOUT

ROWS = 40
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("test")


class TlsFront:
    """Speaks TLS as Postgres does, in front of one that cannot: the stack's is built without."""

    def __init__(self, place: Place, certificate: Path) -> None:
        host, _, port = place.server.address.rpartition(":")
        self._behind = (host, int(port))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            assert client.recv(8) == SSL_REQUEST
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as secure,
                socket.create_connection(self._behind) as server,
            ):
                back = threading.Thread(target=self._pump, args=(server, secure), daemon=True)
                back.start()
                self._pump(secure, server)
                back.join(TIMEOUT)

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 20):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def secured(place: Place, authority: Authority, tmp_path: Path) -> Iterator[TlsFront]:
    """TLS with a certificate for localhost."""
    file = tmp_path / "server.pem"
    file.write_text("".join(authority.issue("postgres", ["localhost"])))
    place.prepare("create table t (id int primary key, name text)")
    front = TlsFront(place, file)
    yield front
    front.close()


def verified(place: Place, front: TlsFront, root: Path, host: str = "localhost") -> str:
    address = place.dsn.replace(place.server.address, f"{host}:{front.port}")
    return f"{address}?sslmode=verify-full&sslrootcert={root}&gssencmode=disable"


def test_a_server_that_is_who_it_should_be_is_read_over_tls(
    place: Place, secured: TlsFront, authority: Authority, tmp_path: Path
) -> None:
    root = tmp_path / "root.pem"
    root.write_text(authority.certificate)
    dsn = verified(place, secured, root)
    with Session(dsn) as session:
        assert session.pgconn.ssl_in_use
        assert len(session.query("select repeat('x', 3000000)")[0][0] or "") == 3_000_000
    with place.replication(dsn=dsn) as replication:
        replication.start(0)
        # Larger than what TLS sends in one piece: what it has decrypted, no poll of the socket tells of.
        place.sql(f"insert into t select g, repeat('x', g * 3000) from generate_series(1, {ROWS}) g")
        frames = take_until(replication, b"C")
    assert sum(frame[2][:1] == b"I" for frame in frames) == ROWS


def test_a_server_that_nobody_vouches_for_or_of_another_name_is_refused_in_one_line(
    place: Place, secured: TlsFront, authority: Authority, tmp_path: Path
) -> None:
    strange, right = tmp_path / "strange.pem", tmp_path / "right.pem"
    strange.write_text(Authority("somebody else").certificate)
    right.write_text(authority.certificate)
    password = place.dsn.split(":")[2].split("@")[0]
    for dsn, problem in (
        (verified(place, secured, strange), "certificate verify failed; name the authority to trust in sslrootcert"),
        (verified(place, secured, right, "127.0.0.1"), "does not match host name"),
        (verified(place, secured, tmp_path / "none.pem"), "does not exist"),
    ):
        with pytest.raises(PostgresUnreachable) as error:
            Session(dsn)
        told = str(error.value)
        assert problem in told
        assert "\n" not in told
        assert password not in told
