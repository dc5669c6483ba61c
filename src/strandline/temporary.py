"""Temporary directories that killed processes do not leave for good: the next one of their kind sweeps them away.

Each is locked for as long as a process holds its lock, so what is in use can be told from what was left.
"""

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from strandline.errors import StackError
from strandline.locks import try_lock

LOCK = "lock"


class Temporary:
    """A directory of this process alone. Removed when it is left or let go of, at the latest when the process ends."""

    def __init__(self, kind: str) -> None:
        self.path, lock = locked_directory(f"strandline-{kind}-{os.getuid()}-")
        self.close = weakref.finalize(self, remove, self.path, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def locked_directory(prefix: str) -> tuple[Path, int]:
    """A new one and its lock, to be given to `remove`; those of the same prefix that nobody holds are swept away."""
    base = Path(tempfile.gettempdir())
    _sweep(base, prefix)
    # Under a name that no sweep looks for until it is locked; the lock stays with it when it is renamed.
    fresh = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=base))
    lock = try_lock(fresh / LOCK, 0)
    if lock is None:
        raise StackError(f"{fresh} is locked by another process")
    return fresh.rename(base / fresh.name.removeprefix(".")), lock


def remove(path: Path, lock: int) -> None:
    """Remove a directory whose lock is ours."""
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep(base: Path, prefix: str) -> None:
    for path in base.glob(f"{prefix}*/"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = try_lock(path / LOCK, 0)
        except OSError:  # its own process was removing it at this moment
            continue
        if lock is not None:
            remove(path, lock)
