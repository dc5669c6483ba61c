"""Bytes from one socket to another that the process never sees: through a pipe of the kernel, without a copy.

There is one pipe of each size for the whole process, and it is empty but within a call of `move`.
"""

import fcntl
import os
from contextlib import suppress
from functools import cache
from typing import Final

# Small pieces through the large pipe cost a tenth more: each of its places is used before any is used again.
USUAL: Final = 256 << 10
MOST: Final = 1 << 20


def move(source: int, target: int, most: int) -> tuple[int, bytes, OSError | None]:
    """How many bytes came out of the one socket, those which the other did not take, and why, if it is broken.

    0 at the end of the source. Raises BlockingIOError where nothing has come, and other OSErrors of the source.
    """
    out, into = _pipe(USUAL if most <= USUAL else MOST)
    came = 0
    # Small packets fill the pipe sooner than their bytes would.
    while came < most:
        try:
            part = os.splice(source, into, min(most - came, MOST), flags=os.SPLICE_F_NONBLOCK)
        except OSError:
            if not came:
                raise
            break  # what is wrong is told again when nothing comes
        came += part
        rest, broken = _empty(out, target, part)
        if not part or rest or broken:
            return came, rest, broken
    return came, b"", None


def _empty(out: int, target: int, count: int) -> tuple[bytes, OSError | None]:
    """What a socket does not take of what is in the pipe, and why, if it is broken."""
    gone, broken = 0, None
    try:
        while gone < count:
            gone += os.splice(out, target, count - gone, flags=os.SPLICE_F_NONBLOCK)
    except BlockingIOError:
        pass
    except OSError as error:
        broken = error
    return os.read(out, count - gone) if gone < count else b"", broken


@cache
def _pipe(size: int) -> tuple[int, int]:
    out, into = os.pipe()
    # A user may have a limit below that, or too many pipes, and gets small ones; through those less goes at a time.
    for largest in (size, USUAL):
        with suppress(PermissionError):
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, largest)
            break
    return out, into
