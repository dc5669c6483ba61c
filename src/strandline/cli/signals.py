"""Ctrl-C, SIGTERM and a closed terminal as a request to stop in good order, never as an exception half-way."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_stop_request(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` when the user or the system asks this process to stop."""

    def handle(_signal: int, _frame: FrameType | None) -> None:
        act()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
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
