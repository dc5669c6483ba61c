"""Ctrl-C, SIGTERM and a closed terminal as a request to stop in good order, never as an exception half-way."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def on_stop_request(act: Callable[[], object]) -> Iterator[None]:
    """Call `act`, in a thread of its own, when the user or the system asks this process to stop.

    Not in the signal handler: that runs between any two steps of the main thread, and where the main thread holds the
    lock of an `Event`, a handler that sets the same `Event` waits for that lock for ever.
    """
    requests: SimpleQueue[bool] = SimpleQueue()  # its `put` may interrupt itself, unlike that of other queues

    def serve() -> None:
        while requests.get():
            act()

    server = Thread(target=serve, name="strandline-stop-request", daemon=True)
    server.start()
    try:
        with on_stop_signal(lambda: requests.put(True)):
            yield
    finally:
        requests.put(False)
        server.join()


@contextmanager
def on_stop_signal(act: Callable[[], object]) -> Iterator[None]:
    """The same in the signal handler itself, so that `act` may raise out of what the main thread does.

    `act` must take no lock and print nothing.
    """

    def handle(_signal: int, _frame: FrameType | None) -> None:
        act()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def once(act: Callable[[], object]) -> Callable[[], None]:
    """What acts when it is called first, and ends the process at once when it is called again.

    For what ends in good order: something that is still open then may never end.
    """
    is_asked = False

    def ask() -> None:
        nonlocal is_asked
        if is_asked:
            os.write(2, b"strandline: interrupted\n")
            os._exit(1)
        is_asked = True
        act()

    return ask
