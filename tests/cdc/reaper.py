"""Ends what is left of a trial: `reaper NAME VALUE`, with a pipe from whoever makes the trial as standard input.

When the pipe is closed, which it also is when that process was killed, every process that has NAME=VALUE in its
environment is killed, until there is none: instances, and what came from them, also JVMs whose instance is long gone,
and those that are frozen. Exit code 1 when some do not end.

A program of its own, with nothing but the standard library.
"""

import os
import signal
import sys
import time
from pathlib import Path

END_WITHIN = 60.0
# It is started by the first instance on a machine and prepares what all later ones use; nobody is to wait for it.
SPARED = b"STRANDLINE_PREPARING_CLASSES=1"


def marked(mark: bytes) -> list[int]:
    """The processes that carry the mark. One that has ended, and was not waited for, has no environment any more."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark in environment and SPARED not in environment:
                found.append(int(entry.name))
    return found


def main() -> int:
    """Wait for the end, and see to it."""
    mark = "=".join(sys.argv[1:]).encode()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + END_WITHIN
    while left := marked(mark):
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return 1
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(main())
