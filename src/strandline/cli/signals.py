"""Ctrl-C, SIGTERM and a closed terminal as a request to stop in good order, never as an exception half-way."""

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
