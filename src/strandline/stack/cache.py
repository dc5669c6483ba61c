"""The user's cache: what is fetched or built once and used by every stack."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from strandline.errors import StackError
from strandline.locks import try_lock
from strandline.stalls import StallDetector, bytes_below

LOCK_SILENCE_S = 300.0
LOOK_EVERY_S = 1.0

log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """STRANDLINE_CACHE, else `strandline` in the user's cache directory; made if it is not there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    directory = Path(os.environ.get("STRANDLINE_CACHE") or Path(base, "strandline"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackError(f"cannot make the cache {directory}: {error.strerror}; set STRANDLINE_CACHE") from error
    return directory


@contextmanager
def one_at_a_time(name: str, cancelled: Event) -> Iterator[None]:
    """Hold the cache's lock of that name: two processes never fetch or build the same thing at once."""
    lock = cache_dir() / f"{name}.lock"
    descriptor = try_lock(lock, LOOK_EVERY_S, cancelled)
    if descriptor is None:
        log.info("waiting for another process, which prepares %s", name)
        # What the other process fetches or builds, it writes below the cache.
        detector = StallDetector(LOCK_SILENCE_S, lambda: bytes_below(cache_dir()))
        while (descriptor := try_lock(lock, LOOK_EVERY_S, cancelled)) is None:
            if detector.problem() is not None:
                problem = f"another process holds {lock}, and has written nothing for {LOCK_SILENCE_S:g} s"
                raise StackError(f"{problem}; end it and try again")
    try:
        yield
    finally:
        os.close(descriptor)
