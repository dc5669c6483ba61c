"""What a server shows of itself over HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for whoever runs it.

On a thread of its own, so that it answers also while the server is busy. `/healthz` says that the process lives;
`/readyz` says why it is not ready, one reason a line, with status 503. A server may have pages of JSON beside these.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from strandline.errors import CannotListen

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
CLIENT_TIMEOUT = 5

log = logging.getLogger(__name__)

NotReady = Callable[[], Sequence[str]]
Documents = Mapping[str, Callable[[], bytes]]
"""Pages of JSON by their path."""


def configured_tracer(scope: str) -> "Tracer | None":
    """Where spans go, None when nobody has set OpenTelemetry up."""
    from opentelemetry import trace  # noqa: PLC0415  (most who are observed are not traced)

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer(scope)


class Observed:
    """Serves the three pages, and those of the server's own, while it is entered."""

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        not_ready: NotReady,
        documents: Documents = MappingProxyType({}),
        *,
        setting: str | None = None,
    ) -> None:
        """`setting` is where the address came from, to be named where it is taken."""

        class Pages(BaseHTTPRequestHandler):
            timeout = CLIENT_TIMEOUT
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                status, kind, body = _page(self.path, registry, not_ready, documents)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
                log.debug(format, *args)

        try:
            self._server = ThreadingHTTPServer((host, port), Pages)
        except OSError as error:
            raise CannotListen(host, port, error, setting) from error
        self._thread = Thread(target=self._server.serve_forever, name="strandline-observe", daemon=True)

    @property
    def address(self) -> str:
        """Where the pages are, with the real port when 0 was asked for."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _page(path: str, registry: CollectorRegistry, not_ready: NotReady, documents: Documents) -> tuple[int, str, bytes]:
    match path.partition("?")[0]:
        case "/metrics":
            return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
        case "/healthz":
            return 200, TEXT, b"ok\n"
        case "/readyz":
            reasons = not_ready()
            return (
                (503, TEXT, "".join(f"{reason}\n" for reason in reasons).encode()) if reasons else (200, TEXT, b"ok\n")
            )
        case name if name in documents:
            return 200, JSON, documents[name]()
        case _:
            return 404, TEXT, f"pages: {' '.join(('/metrics', '/healthz', '/readyz', *documents))}\n".encode()
