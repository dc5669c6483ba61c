"""A Kinesis endpoint that does what a test tells it to, and checks what every request must keep."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

Id = tuple[int, int]


class Entry(NamedTuple):
    """A record of a request."""

    key: str
    event: dict[str, Any]

    @property
    def id(self) -> Id:
        return self.event["lsn"], self.event["ordinal"]


@dataclass(frozen=True)
class Behaviour:
    """What becomes of a request."""

    failing: dict[int, str] = field(default_factory=dict)
    """Codes of records that are not taken, by their place in the request."""
    error: tuple[int, str] | None = None
    """Status and code of an answer to the whole of it; nothing is taken."""
    raw: bytes | None = None
    """A body instead of the answer."""
    takes: bool = True
    answers: bool = True
    """Or else leaves the connection open and says nothing."""
    closes: bool = False
    """Close the connection instead of an answer."""
    closes_after: bool = False
    """Close it behind the answer, without a word."""


FINE = Behaviour()


def refused(code: str, status: int = 400) -> Behaviour:
    """All of it, with an error."""
    return Behaviour(error=(status, code))


class FaultyStream:
    """Serves on a free port, in threads."""

    def __init__(self, behave: Callable[[int, list[Entry]], Behaviour] | None = None) -> None:
        self.behave = behave or (lambda _number, _entries: FINE)
        self.requests: list[list[Entry]] = []
        self.taken: list[Entry] = []
        self.heads: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.broken_rules: list[str] = []
        self.release = threading.Event()
        self._flying: list[tuple[list[Entry], socket.socket]] = []
        self._lock = threading.Lock()
        stream = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                stream._serve(self)

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                """A client that breaks off is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.scheme = "http"

    def secure(self, certificate: str, key: str) -> None:
        """Speak TLS, with files."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.scheme = "https"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if kind is None:
            assert not self.broken_rules

    def ids(self, key: str | None = None) -> list[Id]:
        """What was taken, repeats left out, in the order in which it came."""
        return list(dict.fromkeys(entry.id for entry in self.taken if key in {None, entry.key}))

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        content = handler.rfile.read(int(handler.headers["Content-Length"]))
        body = json.loads(content)
        assert handler.headers["X-Amz-Target"] == "Kinesis_20131202.PutRecords"
        entries = [Entry(one["PartitionKey"], json.loads(base64.b64decode(one["Data"]))) for one in body["Records"]]
        with self._lock:
            # One that its client has given up, and that is read late, is sent again by now.
            if not _is_closed(handler.connection):
                self._check(entries)
            self._flying.append((entries, handler.connection))
            self.heads.append({name.lower(): value for name, value in handler.headers.items()})
            self.bodies.append(content)
        with self._lock:
            number = len(self.requests)
            self.requests.append(entries)
            does = self.behave(number, entries)
            if does.takes and does.error is None:
                self.taken += [entry for place, entry in enumerate(entries) if place not in does.failing]
            # Before the answer is out: the next one may be here at once.
            self._flying.remove((entries, handler.connection))
        if does.closes:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif does.answers:
            self._answer(handler, does, entries)
        else:
            self.release.wait(60)

    def _check(self, entries: list[Entry]) -> None:
        keys = [entry.key for entry in entries]
        if len(set(keys)) != len(keys):
            self.broken_rules.append("a key twice in a request")
        if not 1 <= len(keys) <= 500:
            self.broken_rules.append(f"{len(keys)} records")
        flying = (entry.key for other, connection in self._flying if not _is_closed(connection) for entry in other)
        if set(keys) & set(flying):
            self.broken_rules.append("a key in two requests at once")

    def _answer(self, handler: BaseHTTPRequestHandler, does: Behaviour, entries: list[Entry]) -> None:
        status = 200
        if does.error is not None:
            status, code = does.error
            answer: dict[str, Any] = {"__type": f"com.amazonaws.kinesis#{code}", "message": "as told"}
        else:
            fine = {"SequenceNumber": "1", "ShardId": "shardId-000000000000"}
            records = [
                {"ErrorCode": does.failing[place], "ErrorMessage": "as told"} if place in does.failing else fine
                for place in range(len(entries))
            ]
            answer = {"FailedRecordCount": len(does.failing), "Records": records}
        content = json.dumps(answer).encode() if does.raw is None else does.raw
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = does.closes_after


def _is_closed(connection: socket.socket) -> bool:
    """Whether the client has closed it: after a time-out it may send the same again, however late we are."""
    try:
        return not socket.socket.recv(connection, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
