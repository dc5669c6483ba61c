"""Nothing of a trial outlives it: neither instances nor what they have started, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from strandline.cdc.lease import acquire, create_lease_table
from strandline.cdc.session import Session
from strandline.errors import ConnectionLost
from tests.cdc.instances import Instance, Trouble, family, running, signal_all
from tests.cdc.support import Place, take_until
from tests.spark.cluster import command
from tests.support import TIMEOUT, wait_for

# As an instance and its JVM, which is in a session of its own.
PROGRAM = ("-c", "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True).wait()")
TRIAL = f"""
import pathlib, sys, time
from tests.cdc.instances import Instance, running
with running(lambda: Instance({PROGRAM!r}, pathlib.Path(sys.argv[1]), {{}}), 1) as (one,):
    print(one.process.pid, flush=True)
    time.sleep(600)
"""


def with_its_jvm(process: int) -> list[int]:
    wait_for(lambda: any("sleep" in command(each) for each in family(process)[1:]), "it has started another")
    return family(process)


def are_gone(processes: list[int]) -> bool:
    # One that nobody has waited for yet has no command line.
    return not any(command(process) for process in processes)


@pytest.mark.parametrize("before", [(), (signal.SIGSTOP,), (signal.SIGKILL,)])
def test_when_a_trial_fails_all_of_its_processes_end(tmp_path: Path, before: tuple[signal.Signals, ...]) -> None:
    found: list[int] = []
    with (
        pytest.raises(AssertionError, match="the trial fails"),
        running(lambda: Instance(PROGRAM, tmp_path / "log", {}), 1) as instances,
    ):
        instance, jvm = with_its_jvm(instances[0].process.pid)
        for number in before:
            os.kill(jvm, signal.SIGSTOP)
            os.kill(instance, number)
        found += [instance, jvm]
        raise AssertionError("the trial fails")
    assert len(found) == 2
    assert are_gone(found)


@pytest.fixture
def trouble(place: Place, tmp_path: Path) -> Iterator[Trouble]:
    """With one instance that leads, and has no process of Spark before there is a file."""
    worker = "[sys.executable, '-c', 'import time; time.sleep(600)', '-m', 'pyspark']"
    wait = f"pathlib.Path({str(tmp_path / 'now')!r}).exists() or time.sleep(0.02)"
    program = f"import pathlib, subprocess, sys, time\nwhile not ({wait}): pass\nsubprocess.Popen({worker}).wait()"
    with Session(place.dsn) as session:
        create_lease_table(session)

    def start() -> Instance:
        return Instance(("-c", program), tmp_path / "log", {})

    with running(start, 1) as instances:
        holder = f"test:{instances[0].process.pid}"
        with acquire(place.dsn, "one", holder, wait=timedelta(seconds=TIMEOUT)) or nullcontext():
            yield Trouble(place, start, instances, 1)


def test_a_fault_waits_until_there_is_somebody_to_strike(trouble: Trouble, place: Place, tmp_path: Path) -> None:
    place.prepare("create table t (id int primary key)")
    with ThreadPoolExecutor() as pool:
        killing, cutting = pool.submit(trouble.kill_worker), pool.submit(trouble.cut_slot)
        assert not wait([killing, cutting], 0.2).done
        (tmp_path / "now").touch()
        killing.result(TIMEOUT)
        # It may strike before the server has even answered that the slot is read.
        with pytest.raises(ConnectionLost), place.reading() as replication:
            take_until(replication, b"C")
        cutting.result(TIMEOUT)
    (instance,) = trouble.instances
    assert instance.process.wait(TIMEOUT) == 0


def test_when_whoever_makes_a_trial_is_killed_all_of_its_processes_end(tmp_path: Path) -> None:
    trial = subprocess.Popen([sys.executable, "-c", TRIAL, tmp_path / "log"], stdout=subprocess.PIPE)
    with trial:
        assert trial.stdout is not None
        found = with_its_jvm(int(trial.stdout.readline()))
        assert len(found) == 2
        signal_all(found, signal.SIGSTOP)
        trial.kill()
    wait_for(lambda: are_gone(found), "all have ended", TIMEOUT)
