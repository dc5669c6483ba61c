"""The command `strandline`: one file a command, one line for every error, exit code 0, 1 or 2."""

import os
import signal
import sys
from types import FrameType


def run() -> None:
    """The entry point of the command."""
    # Before the imports, into which the first moments go. A command that has something to stop takes the signals over.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    from strandline.cli.commands import main  # noqa: PLC0415

    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        # What is left is Python's own end. It takes a moment, in which a second Ctrl-C would kill it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    # Not by an exception: one that is raised while Python frees the lock of an import is printed and forgotten.
    os.write(2, b"strandline: interrupted\n")
    os._exit(1)
