"""The directory of a report: of one report at a time, and never half of it new."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strandline.errors import OptionError, StrandlineError

LOCK = ".lock"
WORK = ".work"
"""Where a report is being made."""
TABLES = "tables"
SUMMARY = "summary.json"
PAGE = "report.html"


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Keep it from other reports; made where it is not there, and gone again if nothing was written to it."""
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("wb")
    except OSError as error:
        raise OptionError(f"--out {out} cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it takes the file away at last: one that we opened before is nobody's any more.
            is_ours = os.fstat(lock.fileno()).st_nlink > 0
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            raise StrandlineError(f"another report is being made in {out}; wait for it, or name another --out")
        try:
            yield
        finally:
            # Tasks of Spark that were cancelled write on for a moment: what they left goes when Spark is gone.
            shutil.rmtree(out / WORK, ignore_errors=True)
            (out / LOCK).unlink(missing_ok=True)
            if is_new:
                with suppress(OSError):
                    out.rmdir()


def put_in_place(made: Path, out: Path) -> None:
    """Put a report that is complete in the place of the one before."""
    before = made / "before"
    if (out / TABLES).exists():
        (out / TABLES).rename(before)
    (made / TABLES).rename(out / TABLES)
    for name in (SUMMARY, PAGE):
        (made / name).replace(out / name)
    shutil.rmtree(made)
