"""Waits that are limited by silence and not by duration: a step that makes progress is never cut off.

Progress is anything that changes while a step gets on: bytes of output, records, a status. Of a step that shows none of
it, the processes can be watched instead: one that runs, or waits for a CPU on an overloaded machine, has not stalled.
Work alone is no proof of progress, so it prolongs a wait to `BUSY_FACTOR` times the limit and not further.
"""

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from strandline.errors import Stalled

BUSY_SHARE = 0.1
"""Of the limit: processes that were active for less than this stood still. An idle JVM or event loop is far below."""
BUSY_FACTOR = 10
LOOK_EVERY_S = 0.25
SAMPLE_EVERY_S = 1.0
LONGEST_GAP_S = 5.0
"""A longer time between two looks says that this process stood still too, as on a suspended machine."""

T = TypeVar("T")


class ProcessActivity:
    """How long a process and its descendants have run, or have waited for a CPU, since the first call.

    From the scheduler's figures in /proc. On a kernel that keeps none the answer is always 0.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._last: dict[str, int] = {}
        self._total = 0
        self._is_begun = False

    def seconds(self) -> float:
        """The sum over all their threads, as far as calls have seen them."""
        found = dict(_scheduled(self._pid))
        if self._is_begun:
            self._total += sum(max(0, value - self._last.get(thread, 0)) for thread, value in found.items())
        self._last, self._is_begun = found, True
        return self._total / 1e9


def _scheduled(pid: int) -> "list[tuple[str, int]]":
    """Each thread of a process and of its descendants, with its nanoseconds on a CPU or in the queue for one."""
    found = []
    waiting = [str(pid)]
    while waiting:
        try:
            threads = list(Path(f"/proc/{waiting.pop()}/task").iterdir())
        except OSError:  # it has ended
            continue
        for thread in threads:
            try:
                running, queued, *_ = (thread / "schedstat").read_text().split()
                waiting += (thread / "children").read_text().split()
            except (OSError, ValueError):
                continue
            found.append((thread.name, int(running) + int(queued)))
    return found


class StallDetector:
    """Tells when a step has made no progress for `limit_s` seconds. It may be asked as often as wanted.

    `progress` returns a value that changes while the step gets on. `pid` is a process whose activity, and that of its
    descendants, prolongs the wait.
    """

    def __init__(
        self,
        limit_s: float,
        progress: Callable[[], object] = lambda: None,
        *,
        pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._progress = progress
        self._clock = clock
        self._activity = None if pid is None else ProcessActivity(pid)
        self._look_every_s = min(LOOK_EVERY_S, limit_s / 8)
        self._sample_every_s = min(SAMPLE_EVERY_S, limit_s / 8)
        self._shown = progress()
        self._looked = clock()
        self._silent_s = 0.0
        """Since progress was seen."""
        self._idle_s = 0.0
        """Since progress or activity was seen."""
        self._sampled = self._looked - self._sample_every_s
        self._active_s: float | None = None
        """How active the processes had been when `_idle_s` began to count."""

    def problem(self) -> str | None:
        """What is wrong, in words that follow the name of the step; None while nothing is."""
        now = self._clock()
        if now - self._looked < self._look_every_s:
            return None
        gap = min(now - self._looked, LONGEST_GAP_S)
        self._looked = now
        self._silent_s += gap
        self._idle_s += gap
        shown = self._progress()
        if shown != self._shown:
            self._shown = shown
            self._silent_s = self._idle_s = 0.0
            self._active_s = None
        if self._is_active(now):
            self._idle_s = 0.0
        if self._idle_s >= self._limit_s:
            return f"made no progress for {self._limit_s:g} s"
        if self._silent_s >= BUSY_FACTOR * self._limit_s:
            return f"was busy for {BUSY_FACTOR * self._limit_s:g} s without progress"
        return None

    def _is_active(self, now: float) -> bool:
        """Whether the processes were active enough since they last were."""
        if self._activity is None or now - self._sampled < self._sample_every_s:
            return False
        self._sampled = now
        active_s = self._activity.seconds()
        if self._active_s is not None and active_s - self._active_s < BUSY_SHARE * self._limit_s:
            return False
        self._active_s = active_s
        return True


async def unless_stalled(step: Awaitable[T], detector: StallDetector, name: str, remedy: str) -> T:
    """Wait for a step; raise `Stalled` and cancel it where it makes no progress."""
    task = asyncio.ensure_future(step)
    try:
        while not (await asyncio.wait([task], timeout=LOOK_EVERY_S))[0]:
            problem = detector.problem()
            if problem is not None:
                raise Stalled(name, problem, remedy)
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


def run_tool(
    command: Sequence[str | Path], limit_s: float, *, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a program that ends by itself, for its output; raise `Stalled` and kill it where it makes no progress."""
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            out, errors = _output(process, limit_s, str(command[0]))
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def _output(process: "subprocess.Popen[str]", limit_s: float, name: str) -> tuple[str, str]:
    detector = StallDetector(limit_s, pid=process.pid)
    while True:
        try:
            return process.communicate(timeout=min(LOOK_EVERY_S, limit_s))
        except subprocess.TimeoutExpired:
            problem = detector.problem()
            if problem is not None:
                raise Stalled(name, problem, "run it by hand to see why") from None


def bytes_below(directory: Path) -> int:
    """How much the files below a directory hold, as far as they can be seen."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(Path(parent, name)).st_size
            except OSError:  # it has gone meanwhile
                continue
    return total
