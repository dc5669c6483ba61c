"""The figures of an epoch, from where it is delivered to where it is watched.

The sink's commit runs in a process of Spark's own, on the machine of the driver. So figures go over a datagram socket
in a private directory: nobody waits for them, and none is missed but when nobody listens.
"""

import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

MOST_BYTES = 8 << 10
LOOK_EVERY = 0.5


class Figures(Struct, frozen=True, kw_only=True):
    """What became of an epoch."""

    epoch: int
    records: int = 0
    bytes: int = 0
    requests: int = 0
    retried: int = 0
    throttled: int = 0
    dead_lettered: int = 0
    hottest_per_s: float = 0.0
    """Records a second of the one key with the most."""
    delay_s: float | None = None
    """From the commit of the last change until all were accepted; None where there was none."""


def tell(place: str, figures: Figures) -> None:
    """Send figures to whoever listens at a place."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out, contextlib.suppress(OSError):
        out.setblocking(False)
        out.sendto(msgspec.json.encode(figures), place)


class Listening:
    """Hands on what is told, in a thread, while it is entered."""

    def __init__(self, heard: Callable[[Figures], None]) -> None:
        self._heard = heard
        self._directory = tempfile.TemporaryDirectory(prefix="strandline-figures-")
        self.place = str(Path(self._directory.name, "socket"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.place)
        self._socket.settimeout(LOOK_EVERY)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-figures", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(2 * LOOK_EVERY)
        self._socket.close()
        self._directory.cleanup()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError, msgspec.DecodeError):
                self._heard(msgspec.json.decode(self._socket.recv(MOST_BYTES), type=Figures))
