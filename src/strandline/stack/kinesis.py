"""A Kinesis endpoint: moto's server. It keeps its streams in memory, so they end with the process."""

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from strandline.errors import FetchFailed, StackError
from strandline.stack.ports import LOOPBACK, free_port, retry_when_taken
from strandline.stack.processes import Child

START_TIMEOUT = 60.0
# Its access log would grow without bound.
MAIN = """
import logging, sys
from moto.server import main
logging.getLogger("werkzeug").setLevel("ERROR")
main(sys.argv[1:])
"""

log = logging.getLogger(__name__)


class Kinesis:
    """One endpoint for any number of streams."""

    name = "kinesis"

    def __init__(
        self, directory: Path, *, keep_fds: Sequence[int] = (), choose_port: Callable[[], int] = free_port
    ) -> None:
        self.directory = directory
        self._keep_fds = keep_fds
        self._choose_port = choose_port
        self._server: Child | None = None
        self._port = 0

    @property
    def endpoint(self) -> str:
        """The value of `endpoint_url`."""
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{LOOPBACK}:{self._port}"

    def settings(self) -> dict[str, str]:
        """What an AWS client needs, as environment variables."""
        return {
            "AWS_ENDPOINT_URL_KINESIS": self.endpoint,
            "AWS_ACCESS_KEY_ID": "local",
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def check(self) -> None:
        """Refuse to start without the server's package."""
        if find_spec("moto") is None or find_spec("flask_cors") is None:
            raise FetchFailed("moto", "it is not installed: pip install 'strandline[stack]'")

    def start(self, cancelled: Event) -> None:
        """Start and return when it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        retry_when_taken(lambda: self._start_on_a_fresh_port(cancelled))

    def _start_on_a_fresh_port(self, cancelled: Event) -> None:
        self._port = self._choose_port()
        log.info("kinesis: starting")
        self._server = Child(
            name=self.name,
            command=[sys.executable, "-c", MAIN, "-H", LOOPBACK, "-p", str(self._port)],
            log=self.directory / "kinesis.log",
            cwd=self.directory,
            keep_fds=self._keep_fds,
        )
        self._server.start()
        self._server.wait_until(self._answers, START_TIMEOUT, cancelled)

    def _answers(self) -> bool:
        if self._server is None or not self._server.listens_on(self._port):
            return False
        connection = HTTPConnection(LOOPBACK, self._port, timeout=2)
        try:
            connection.request("GET", "/moto-api/")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """Stop the server; there is nothing to keep."""
        if self._server is not None:
            self._server.stop(signal.SIGKILL, grace=0)

    def failure(self) -> StackError | None:
        """The error of a server that died, or None while it runs."""
        return None if self._server is None else self._server.death()
