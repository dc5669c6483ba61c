"""The user's cache: what is fetched or built once and used by every stack."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from strandline.errors import StackError
from strandline.locks import try_lock

LOCK_TIMEOUT = 900.0


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
    descriptor = try_lock(lock, LOCK_TIMEOUT, cancelled)
    if descriptor is None:
        raise StackError(f"another process has held {lock} for {LOCK_TIMEOUT:g} s; end it and try again")
    try:
        yield
    finally:
        os.close(descriptor)
