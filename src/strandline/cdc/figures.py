"""The figures of an epoch or of a part of a snapshot, from where it is delivered to where it is watched.

The sink's commit runs in a process of Spark's own, on the machine of the driver. So figures go over a datagram socket
in a private directory: nobody waits for them, and none is missed but when nobody listens.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from strandline.cdc.sending import Sent
from strandline.temporary import Temporary

MOST_BYTES = 8 << 10
LOOK_EVERY = 0.5


class Figures(Struct, frozen=True, kw_only=True):
    """What became of an epoch, or of some chunks of a snapshot."""

    epoch: int | None
    """None for a snapshot."""
    records: int = 0
    bytes: int = 0
    requests: int = 0
    retried: int = 0
    throttled: int = 0
    dead_lettered: int = 0
    first_letter: str | None = None
    hottest_per_s: float = 0.0
    """Records a second of the one key with the most."""
    delay_s: float | None = None
    """From the commit of the last change until all were accepted; None where there was none."""


def summed(epoch: int | None, sent: Sequence[Sent], *, delay_s: float | None = None) -> Figures:
    """Figures of what was sent by several."""
    return Figures(
        epoch=epoch,
        records=sum(each.records for each in sent),
        bytes=sum(each.bytes for each in sent),
        requests=sum(each.requests for each in sent),
        retried=sum(each.retried for each in sent),
        throttled=sum(each.throttled for each in sent),
        dead_lettered=sum(each.dead_lettered for each in sent),
        first_letter=next((each.first_letter for each in sent if each.first_letter is not None), None),
        hottest_per_s=max((each.hottest_per_s for each in sent), default=0.0),
        delay_s=delay_s,
    )


def tell(place: str, figures: Figures) -> None:
    """Send figures to whoever listens at a place."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out,
        _short(place) as address,
    ):
        out.setblocking(False)
        out.sendto(msgspec.json.encode(figures), address)


@contextlib.contextmanager
def _short(place: str) -> Iterator[str]:
    """The same place by a name for which an address has room: that is a hundred bytes, and TMPDIR may be longer."""
    directory, name = os.path.split(place)
    opened = os.open(directory, os.O_PATH)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


class Listening:
    """Hands on what is told, in a thread, while it is entered, and calls `look` at least every half second.

    Its making opens nothing.
    """

    def __init__(self, heard: Callable[[Figures], None], look: Callable[[], None] = lambda: None) -> None:
        self._heard = heard
        self._look = look
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strandline-figures", daemon=True)
        self._temporary: Temporary
        self._socket: socket.socket
        self.place: str
        """Where to tell it, while it is entered."""

    def __enter__(self) -> Self:
        self._temporary = Temporary("figures")
        self.place = str(self._temporary.path / "socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with _short(self.place) as address:
            self._socket.bind(address)
        self._socket.settimeout(LOOK_EVERY)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        # It waits for half a second at the most. Two that read the socket would be in each other's way.
        self._thread.join()
        # What was told in the last moment.
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take()
        self._socket.close()
        self._temporary.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                self._take()
            self._look()

    def _take(self) -> None:
        told = self._socket.recv(MOST_BYTES)
        with contextlib.suppress(msgspec.DecodeError):
            self._heard(msgspec.json.decode(told, type=Figures))
