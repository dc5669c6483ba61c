"""Where the servers keep their files: a directory of the user's, or a temporary one that is removed.

Either way the directory is locked for as long as any process of the stack lives: servers inherit the lock. A stack that
was killed therefore leaves a directory that the next one can tell from one in use, take over, or sweep away.
"""

import json
import os
from pathlib import Path
from threading import Event
from typing import Any

from strandline.errors import DataRefused
from strandline.locks import try_lock
from strandline.temporary import LOCK, locked_directory, remove

MARKER = "stack.json"
FORMAT = 1
# How long the servers of a killed stack may take to be gone.
TAKE_OVER_TIMEOUT = 15.0
TEMPORARY_PREFIX = f"strandline-{os.getuid()}-"


class DataDirectory:
    """A locked directory. Close it to unlock it, and to remove it when it is temporary."""

    def __init__(self, path: Path, lock: int, *, temporary: bool) -> None:
        self.path = path
        self.lock = lock
        self.temporary = temporary

    def close(self) -> None:
        """Unlock, and remove what is temporary."""
        if self.temporary:
            remove(self.path, self.lock)
        else:
            os.close(self.lock)


def open_data(path: Path | None, cancelled: Event) -> DataDirectory:
    """The user's directory, or a temporary one when there is none."""
    return _open_temporary() if path is None else _open_given(path.absolute(), cancelled)


def _open_given(path: Path, cancelled: Event) -> DataDirectory:
    try:
        present = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise DataRefused(path, f"cannot be read: {error.strerror}") from error
    if MARKER not in present and present - {LOCK, f"{MARKER}.new"}:
        raise DataRefused(path, f"is not empty and was not made by strandline (it has no {MARKER})")
    if MARKER in present:
        found = read_json(path / MARKER).get("format")
        if found != FORMAT:
            raise DataRefused(path, f"has data of format {found}, and this strandline reads format {FORMAT}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = try_lock(path / LOCK, 0)
        if lock is None:
            lock = _take_over(path, cancelled)
    except OSError as error:
        raise DataRefused(path, f"cannot be written: {error.strerror}") from error
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    if MARKER not in present:
        write_json(path / MARKER, {"format": FORMAT})
    return DataDirectory(path, lock, temporary=False)


def _take_over(path: Path, cancelled: Event) -> int:
    """The lock of a stack that was killed, once its last server is gone; a stack that still lives keeps it."""
    holder = (path / LOCK).read_text()
    alive = holder.isdigit() and Path("/proc", holder).exists()
    lock = None if alive else try_lock(path / LOCK, TAKE_OVER_TIMEOUT, cancelled)
    if lock is None:
        raise DataRefused(path, f"is in use by another strandline (process {holder or 'unknown'})")
    return lock


def _open_temporary() -> DataDirectory:
    path, lock = locked_directory(TEMPORARY_PREFIX)
    if os.getuid() == 0:
        # Postgres runs as another user then, and must be able to get at its own directory in here.
        path.chmod(0o755)
    return DataDirectory(path, lock, temporary=True)


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object of ours; one that cannot be read is refused, never overwritten."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataRefused(path, f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise DataRefused(path, "is not a JSON object")
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(path)


def write_private(path: Path, text: str) -> None:
    """Write whole or not at all, for nobody to read but ourselves."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600, exist_ok=False)
    fresh.write_text(text)
    fresh.replace(path)
