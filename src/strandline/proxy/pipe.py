"""Bytes from one socket to another that the process never sees: through a pipe of the kernel, without a copy.

There is one pipe for the whole process, and it is empty but within a call of `move`.
"""

import fcntl
import os
from contextlib import suppress
from functools import cache
from typing import Final

MOST: Final = 1 << 20


def move(source: int, target: int, most: int) -> tuple[int, bytes, OSError | None]:
    """How many bytes came out of the one socket, those which the other did not take, and why, if it is broken.

    0 at the end of the source. Raises BlockingIOError where nothing has come, and other OSErrors of the source.
    """
    out, into = _pipe()
    came = os.splice(source, into, min(most, MOST), flags=os.SPLICE_F_NONBLOCK)
    gone, broken = 0, None
    try:
        while gone < came:
            gone += os.splice(out, target, came - gone, flags=os.SPLICE_F_NONBLOCK)
    except BlockingIOError:
        pass
    except OSError as error:
        broken = error
    return came, os.read(out, came - gone) if gone < came else b"", broken


@cache
def _pipe() -> tuple[int, int]:
    out, into = os.pipe()
    # A user with too many pipes gets small ones; through those less goes at a time.
    with suppress(PermissionError):
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, MOST)
    return out, into
