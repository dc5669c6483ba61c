"""Ends a process that stands still: `supervisor PID SECONDS`, with a pipe from that process as standard input.

Spark notices a Python process that is gone, and not one that is frozen. So each member of a fleet, and each process of
change capture, starts one of these beside it. Every byte in the pipe is a sign of life; when none comes for SECONDS,
the process is killed, and Spark starts the task anew. When the pipe is closed, or the process is gone, this one ends
too.

A program of its own, with nothing but the standard library: it must run where the process that it watches cannot.
"""

import os
import select
import signal
import sys
import time

SLICES = 20
"""A wait is cut into so many. One that takes far longer than it should says that this process stood still too."""


def main() -> None:
    """Watch."""
    process, patience = int(sys.argv[1]), float(sys.argv[2])
    # What is sent to the group of that process is for that one.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    # Our parent is the process that we are to watch. If it had ended before the line above, and its number gone to
    # another, we would have another parent by now.
    if os.getppid() != process:
        return
    poller = select.poll()
    poller.register(0, select.POLLIN)
    poller.register(handle, select.POLLIN)
    slice_ = patience / SLICES
    missed = 0
    while missed < SLICES:
        since = time.monotonic()
        ready = {descriptor for descriptor, _ in poller.poll(slice_ * 1000)}
        if handle in ready or (0 in ready and not os.read(0, 65536)):
            return
        if ready or time.monotonic() - since > 3 * slice_:
            missed = 0
        else:
            missed += 1
    print(f"process {process} stood still for {patience:g} s and is killed", file=sys.stderr, flush=True)  # noqa: T201
    signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main()
