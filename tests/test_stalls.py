"""A step is ended when it stands still, and never because it takes long."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import Stalled
from strandline.stalls import (
    BUSY_FACTOR,
    LONGEST_GAP_S,
    LOOK_EVERY_S,
    ProcessActivity,
    StallDetector,
    bytes_below,
    run_tool,
    unless_stalled,
)
from tests.support import TIMEOUT, wait_for

LIMIT_S = 8.0
SPINS = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\nprint('done')"
SLEEPS = "import time; time.sleep(600)"


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def idle() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", SLEEPS]) as process:
        try:
            yield process
        finally:
            process.kill()


@given(st.lists(st.tuples(st.floats(LOOK_EVERY_S, 20), st.booleans()), max_size=60))
def test_a_step_has_stalled_exactly_when_it_was_silent_for_the_limit(looks: list[tuple[float, bool]]) -> None:
    clock, shown, silent = Clock(), [0], 0.0
    detector = StallDetector(LIMIT_S, lambda: shown[0], clock=clock)
    for seconds, gets_on in looks:
        before = clock.now
        clock.now += seconds
        shown[0] += gets_on
        # A gap is a time in which this process stood still too.
        silent = 0.0 if gets_on else silent + min(clock.now - before, LONGEST_GAP_S)
        problem = detector.problem()
        assert (problem is not None) == (silent >= LIMIT_S)
        if problem is not None:
            assert problem == "made no progress for 8 s"
            return


def test_a_busy_step_may_be_silent_for_longer_but_not_for_ever(idle: "subprocess.Popen[bytes]") -> None:
    clock, limit_s, silent = Clock(), 0.8, 0.0
    detector = StallDetector(limit_s, clock=clock, pid=os.getpid())
    while (problem := detector.problem()) is None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        clock.now += 0.11
        silent += 0.11
    assert problem == f"was busy for {BUSY_FACTOR * limit_s:g} s without progress"
    assert silent >= BUSY_FACTOR * limit_s
    detector = StallDetector(limit_s, clock=clock, pid=idle.pid)
    while (problem := detector.problem()) is None:
        clock.now += 0.11
    assert problem == "made no progress for 0.8 s"


def test_the_activity_of_a_process_is_that_of_its_descendants_too() -> None:
    spin = SPINS.format(seconds=600)
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {spin!r}])"
    with subprocess.Popen([sys.executable, "-S", "-c", program], start_new_session=True) as process:
        try:
            activity = ProcessActivity(process.pid)
            wait_for(lambda: activity.seconds() > 1.0, "the grandchild was seen to run")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    activity.seconds()
    assert activity.seconds() == activity.seconds()


@pytest.mark.usefixtures("freezes_count_little")
def test_a_tool_that_stands_still_is_ended_with_one_line(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    program = f"import os, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid())); {SLEEPS}"
    with pytest.raises(Stalled) as failure:
        run_tool([sys.executable, "-I", "-S", "-c", program], 1.0)
    assert str(failure.value) == (f"{sys.executable} made no progress for 1 s and was ended; run it by hand to see why")
    assert not Path("/proc", mark.read_text()).exists()


@pytest.mark.server
@pytest.mark.usefixtures("freezes_count_little")
def test_a_tool_that_works_for_longer_than_the_limit_is_not_cut_off() -> None:
    assert run_tool([sys.executable, "-I", "-S", "-c", SPINS.format(seconds=5)], 2.0).stdout == "done\n"


@pytest.mark.usefixtures("freezes_count_little")
def test_a_step_that_is_slow_and_makes_progress_is_waited_for() -> None:
    done: list[int] = []

    async def step() -> str:
        for number in range(12):
            await asyncio.sleep(0.25)
            done.append(number)
        return "whole"

    async def waited() -> str:
        return await unless_stalled(step(), StallDetector(2.0, lambda: len(done)), "the step", "wait")

    assert asyncio.run(waited()) == "whole"


def test_a_step_that_stands_still_is_cancelled_before_that_is_told() -> None:
    ended = []

    async def step() -> None:
        try:
            await asyncio.sleep(TIMEOUT)
        finally:
            ended.append("step")

    async def waited() -> None:
        await unless_stalled(step(), StallDetector(0.5), "the step", "try again")

    with pytest.raises(Stalled, match=r"^the step made no progress for 0\.5 s and was ended; try again$"):
        asyncio.run(waited())
    assert ended == ["step"]


def test_bytes_below_a_directory_grow_with_any_file_in_it(tmp_path: Path) -> None:
    assert bytes_below(tmp_path / "absent") == 0
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert bytes_below(tmp_path) == 5 + len(str(tmp_path / "nowhere"))
