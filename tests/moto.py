"""Moto's Kinesis as a process: the peer that our own endpoint is held against, in tests and in benches."""

import signal
import sys
import tempfile
from pathlib import Path
from threading import Event
from typing import Self

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


class Moto:
    """One server, gone at the end of the block."""

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory()
        retry_when_taken(self._start)
        return self

    def _start(self) -> None:
        home = Path(self._directory.name)
        port = free_port()
        self.endpoint = f"http://{LOOPBACK}:{port}"
        self.server = Child(
            name="moto",
            command=[sys.executable, "-c", MAIN, "-H", LOOPBACK, "-p", str(port)],
            log=home / "moto.log",
            cwd=home,
        )
        self.server.start()
        self.server.wait_until(lambda: self.server.listens_on(port), START_TIMEOUT, Event())

    def __exit__(self, *_: object) -> None:
        self.server.stop(signal.SIGKILL, silence_s=0)
        self._directory.cleanup()
