"""File locks with a time-out. The kernel frees one when the last process that holds its file has ended."""

import fcntl
import os
import time
from pathlib import Path
from threading import Event

from strandline.errors import StartCancelled

POLL_INTERVAL = 0.05


def try_lock(path: Path, timeout: float, cancelled: Event | None = None) -> int | None:
    """Lock a file, made if it is not there; its descriptor, to be closed to unlock it, or None after the time-out."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    deadline = time.monotonic() + timeout
    cancelled = cancelled or Event()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
        else:
            return descriptor
        if cancelled.wait(POLL_INTERVAL):
            os.close(descriptor)
            raise StartCancelled
