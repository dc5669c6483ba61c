"""Batches that one process has made ready and another fetches, over a socket that asks for a secret.

Rows that a reader on the driver gives to Spark itself would be kept by its JVM one by one, at three times the cost. So
only their place is given, and the task fetches them as they are.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from strandline.errors import ShelfEmpty

SECRET_BYTES = 32
KEY = struct.Struct(">Q")
TIMEOUT = 30.0


class Place(NamedTuple):
    """Where batches lie: whoever has it may fetch them."""

    host: str
    port: int
    secret: bytes
    key: int
    rows: int
    """In all batches together. A stream that is cut between two of them looks like one that has ended."""

    def __repr__(self) -> str:
        return f"Place({self.host}:{self.port}, {self.key}, {self.rows} rows)"


class Shelf:
    """Holds batches until they are cleared. Listens from its making on, in a thread."""

    def __init__(self, host: str) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        self._held: dict[int, Sequence[pa.RecordBatch]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._served: set[socket.socket] = set()
        self._listener = socket.create_server((host, 0))
        self._host = host
        threading.Thread(target=self._serve, name="strandline-shelf", daemon=True).start()

    def put(self, batches: Sequence[pa.RecordBatch]) -> Place:
        """Hold batches, at least one."""
        self._next += 1
        self._held[self._next] = batches
        rows = sum(batch.num_rows for batch in batches)
        return Place(self._host, self._listener.getsockname()[1], self._secret, self._next, rows)

    def clear(self) -> None:
        """Nothing of it is wanted any more, not even by who is fetching it."""
        self._held.clear()
        with self._lock:
            for connection in self._served:
                _shut(connection)

    def close(self) -> None:
        """Listen no more, and hold nothing."""
        # To close alone would leave the thread in its wait, and the port open with it.
        _shut(self._listener)
        self._listener.close()
        self.clear()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Whoever does not know the secret, and whoever asks for what is not there, finds the connection closed."""
        with connection, contextlib.suppress(OSError, EOFError):
            connection.settimeout(TIMEOUT)
            asked = _exactly(connection, SECRET_BYTES + KEY.size)
            if not hmac.compare_digest(asked[:SECRET_BYTES], self._secret):
                return
            # A task reads no further while its sink is held up, for as long as that takes.
            connection.settimeout(None)
            with self._lock:
                batches = self._held.get(KEY.unpack(asked[SECRET_BYTES:])[0])
                self._served.add(connection)
            try:
                if batches is not None:
                    _send(connection, batches)
            finally:
                with self._lock:
                    self._served.discard(connection)


def _send(connection: socket.socket, batches: Sequence[pa.RecordBatch]) -> None:
    with connection.makefile("wb") as out:
        writer = pa.ipc.new_stream(out, batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        # The mark of the end, which stands behind all of them or nowhere: so it is no `with`.
        writer.close()


def fetch(place: Place) -> Iterator[pa.RecordBatch]:
    """The batches of a place, all of them; raises ShelfEmpty where it, or who held it, is gone before the last."""
    found = 0
    try:
        with socket.create_connection((place.host, place.port), TIMEOUT) as connection:
            connection.sendall(place.secret + KEY.pack(place.key))
            with connection.makefile("rb") as answer, pa.ipc.open_stream(answer) as reader:
                for batch in reader:
                    found += batch.num_rows
                    yield batch
    except (OSError, pa.ArrowInvalid) as error:
        raise ShelfEmpty(f"{place.host}:{place.port}", str(error)) from None
    if found != place.rows:
        raise ShelfEmpty(f"{place.host}:{place.port}", f"they end after {found:,} of {place.rows:,}")


def _shut(connection: socket.socket) -> None:
    """Have whoever waits on it look up."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
