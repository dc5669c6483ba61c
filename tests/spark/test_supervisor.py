"""The supervisor beside a process of Spark: it kills its own parent when that stands still, and nobody else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strandline.spark import supervisor
from tests.cdc.instances import family
from tests.support import TIMEOUT, wait_for

PROGRAM = """
import os, subprocess, sys, time
pid = sys.argv[2] if len(sys.argv) > 2 else str(os.getpid())
child = subprocess.Popen([sys.executable, "-I", "-S", sys.argv[1], pid, "2"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
while True:
    try:
        child.stdin.write(b".")
        child.stdin.flush()
    except BrokenPipeError:
        print("it has ended", flush=True)
        child.wait()
        time.sleep(1000)
    time.sleep(0.02)
"""

WAITING = """
import time
from datetime import timedelta
from strandline.spark.supervised import stay_supervised
for _ in range(2):
    stay_supervised(timedelta(seconds=2))
print("waits", flush=True)
time.sleep(1000)
"""


@contextmanager
def watched(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process that gives signs of life to its supervisor, and the supervisor's number."""
    command = [sys.executable, "-c", PROGRAM, supervisor.__file__, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait(TIMEOUT)
        process.stdout.close()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waits(pid: int) -> bool:
    """Whether the supervisor has come to where it waits: it has put away the signals that are not for it."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    return bool(ignored & 1 << signal.SIGTERM - 1)


def test_a_process_that_stands_still_is_killed_and_its_supervisor_ends() -> None:
    with watched() as (process, supervising):
        wait_for(lambda: waits(supervising), "it watches")
        process.send_signal(signal.SIGSTOP)
        assert process.wait(TIMEOUT) == -signal.SIGKILL
        wait_for(lambda: not is_running(supervising), "the supervisor is gone")


def test_a_supervisor_ends_with_its_process_and_heeds_no_signal_that_is_for_that_one() -> None:
    with watched() as (process, supervising):
        wait_for(lambda: waits(supervising), "it watches")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            os.kill(supervising, number)
        assert is_running(supervising)
        process.kill()
        process.wait(TIMEOUT)
        wait_for(lambda: not is_running(supervising), "the supervisor is gone")


def test_a_process_that_is_not_its_parent_is_never_touched() -> None:
    with watched() as (other, _), watched(str(other.pid)) as (process, supervising):
        assert process.stdout is not None
        assert process.stdout.readline() == "it has ended\n"
        wait_for(lambda: not is_running(supervising), "the supervisor is gone")
        assert other.poll() is None


def test_a_process_that_only_waits_lives_and_has_one_supervisor_also_where_that_was_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waits\n"
        wait_for(lambda: len(family(process.pid)) == 2, "it has a supervisor")
        first = family(process.pid)[1]
        wait_for(lambda: waits(first), "it watches")
        os.kill(first, signal.SIGKILL)
        (second,) = wait_for(lambda: [each for each in family(process.pid)[1:] if each != first], "it has another")
        wait_for(lambda: waits(second), "it watches")
        # Its main thread has done nothing meanwhile.
        assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        assert process.wait(TIMEOUT) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait(TIMEOUT)
        process.stdout.close()
