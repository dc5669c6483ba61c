"""A Python process of Spark that has a supervisor beside it (`supervisor.py`), which ends it when it stands still."""

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.resources import files

from strandline.errors import OptionError
from strandline.spark.options import span

SUPERVISOR = "supervisor.py"
BEAT = 0.5
FROZEN_AFTER = timedelta(seconds=60)
"""Far longer than the machine may be busy with others."""
LEAST_FROZEN_AFTER = timedelta(seconds=2)
"""A few signs of life."""
OPTION = "frozenAfter"


def frozen_after_option(options: Mapping[str, str]) -> timedelta:
    """The option of a source or a sink: how long its processes may stand still."""
    given = span(options, OPTION)
    if given is not None and given < LEAST_FROZEN_AFTER:
        raise OptionError(f"option '{OPTION}' is at least {LEAST_FROZEN_AFTER.total_seconds():g}s, not {given}")
    return FROZEN_AFTER if given is None else given


@contextmanager
def supervised(frozen_after: timedelta) -> Iterator[int]:
    """Have a process beside this one that ends it when it stands still; where to give signs of life."""
    # Not by its path: it may lie in an archive.
    program = files("strandline.spark").joinpath(SUPERVISOR).read_text()
    command = [sys.executable, "-I", "-S", "-c", program, str(os.getpid()), str(frozen_after.total_seconds())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None  # noqa: S101
    os.set_blocking(process.stdin.fileno(), False)
    try:
        yield process.stdin.fileno()
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@functools.cache
def stay_supervised(frozen_after: timedelta) -> None:
    """Be supervised to the end of this process, in which one task after the other runs.

    Signs of life come from a thread: whoever waits, for a slow stream or for its turn, is alive.
    """
    threading.Thread(target=_beat, args=(frozen_after,), name="strandline-alive", daemon=True).start()


def _beat(frozen_after: timedelta) -> None:
    while True:
        # A supervisor that is gone is replaced.
        with suppress(OSError), supervised(frozen_after) as pipe:
            while True:
                with suppress(BlockingIOError):
                    os.write(pipe, b".")
                time.sleep(BEAT)
        time.sleep(BEAT)
