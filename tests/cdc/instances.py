"""Instances of which one leads, and what can happen to them: killed, frozen, cut off, their Postgres restarted."""

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import TypeVar

import psycopg

from strandline.stack import Kinesis
from tests.cdc.history import READ, check
from tests.cdc.support import Place
from tests.spark.cluster import command
from tests.support import TIMEOUT, wait_for

# Spark starts anew with every leader, and a shared machine may take minutes to do so.
PATIENCE = 10 * TIMEOUT
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = " -m pyspark"
# In the environment of every instance, and so of all that come from it.
MARK = ("STRANDLINE_TRIAL", uuid.uuid4().hex)
Kind = TypeVar("Kind")
REAPER = Path(__file__).with_name("reaper.py")


class Instance:
    """A process that leads or waits to, such as one of `strandline cdc run`, and what it has said."""

    def __init__(self, program: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as out:
            marked = {**os.environ, **env, MARK[0]: MARK[1]}
            self.process = subprocess.Popen([sys.executable, *program], stderr=out, env=marked)

    def said(self) -> str:
        return self._log.read_text()

    def check(self) -> None:
        """It has not ended by itself."""
        assert self.process.poll() is None, f"exit code {self.process.returncode}: {self.said()}"
        assert "Traceback" not in self.said(), self.said()

    def leads(self) -> bool:
        self.check()
        return "leading '" in self.said()

    def end(self, number: int) -> int:
        """Send a signal, and wait; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


@contextmanager
def running(start: Callable[[], Instance], count: int) -> Iterator[list[Instance]]:
    """So many instances. They, those started meanwhile, and all that came from them have ended when this has.

    So they have when this process is killed; it is a process of its own that sees to it.
    """
    reaper = subprocess.Popen([sys.executable, "-I", "-S", REAPER, *MARK], stdin=subprocess.PIPE, process_group=0)
    started: list[Instance] = []
    try:
        started += [start() for _ in range(count)]
        yield started
    finally:
        reaper.communicate(timeout=TIMEOUT)
        for instance in started:
            instance.process.wait(TIMEOUT)
    assert reaper.returncode == 0, "some processes of the trial do not end"


def family(process: int) -> list[int]:
    """A process and all that come from it."""
    found = [process]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def signal_all(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def in_turn(chance: random.Random, kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Each kind once, in any order, before any comes again."""
    while True:
        yield from chance.sample(kinds, len(kinds))


class Trouble:
    """What can happen to the one that leads, or to Postgres."""

    def __init__(self, place: Place, start: Callable[[], Instance], instances: list[Instance], seed: int) -> None:
        self._place = place
        self._start = start
        self.instances = instances
        self._random = random.Random(seed)
        self._frozen: list[int] = []

    def leader(self) -> Instance | None:
        try:
            rows = self._place.sql("select holder from strandline.lease where expires > clock_timestamp()")
        except psycopg.errors.UndefinedTable:
            return None
        found = [one for one in self.instances if rows and rows[0][0].endswith(f":{one.process.pid}")]
        return found[0] if found else None

    def led(self) -> Instance:
        """Whoever leads, once somebody does."""
        wait_for(self.leader, "somebody leads", PATIENCE)
        found = self.leader()
        return found if found is not None else self.led()

    def check(self) -> None:
        """No instance has ended by itself."""
        for instance in self.instances:
            instance.check()

    def thaw(self) -> None:
        signal_all(self._frozen, signal.SIGCONT)
        self._frozen = []

    def kill(self) -> None:
        leader = self.led()
        leader.end(signal.SIGKILL)
        self.instances.remove(leader)
        self.instances.append(self._start())

    def freeze(self) -> None:
        """Until the other leads; it is thawed when that one has delivered something."""
        leader = self.led()
        self._frozen = family(leader.process.pid)
        signal_all(self._frozen, signal.SIGSTOP)
        wait_for(lambda: self.leader() not in {None, leader}, "the other leads", PATIENCE)

    def kill_worker(self) -> None:
        """A Python process of Spark, its reader or a task's."""
        self._kill_one_of(WORKER)

    def kill_executor(self) -> None:
        """The Java process that runs tasks; with a local master the one that plans them too."""
        self._kill_one_of(EXECUTOR, "org.apache.spark.deploy.SparkSubmit")

    def _kill_one_of(self, *names: str) -> None:
        def is_killed() -> bool:
            members = family(self.led().process.pid)
            for name in names:
                if found := [process for process in members if name in command(process)]:
                    signal_all([self._random.choice(found)], signal.SIGKILL)
                    return True
            return False

        # Who leads only just now has none yet, and a fault that struck nobody would count as endured.
        wait_for(is_killed, f"there is one of {names} to kill", PATIENCE)

    def cut_lock(self) -> None:
        self._cut(
            "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted "
            "and database = (select oid from pg_database where datname = current_database())"
        )

    def cut_slot(self) -> None:
        self._cut(
            f"select pg_terminate_backend(active_pid) from pg_replication_slots "
            f"where slot_name = '{self._place.slot}' and active"
        )

    def _cut(self, session: str) -> None:
        wait_for(lambda: any(ended for (ended,) in self._place.sql(session)), "there is a session to cut", PATIENCE)

    def restart_postgres(self) -> None:
        self._place.server.restart(Event())

    def crash_postgres(self) -> None:
        self._place.server.restart(Event(), crash=True)


def await_more(kinesis: Kinesis, place: Place, trouble: Trouble) -> None:
    """More records than were on their way."""
    wanted = kinesis.counts(place.name).records + 50

    def has_come() -> bool:
        trouble.check()
        return kinesis.counts(place.name).records > wanted

    wait_for(has_come, "changes arrive", PATIENCE)


def finish(kinesis: Kinesis, place: Place, trouble: Trouble, *, epoch_rows: int) -> int:
    """All that was written is acknowledged, and is what arrived; the number of repeats."""
    kinesis.set_faults(place.name)
    end = int(place.sql("select pg_current_wal_flush_lsn() - '0/0'")[0][0])

    # After a long trial that takes long, and is well as long as it moves.
    while (acknowledged := place.confirmed()) < end:

        def has_moved(last: int = acknowledged) -> bool:
            trouble.check()
            return place.confirmed() > last

        wait_for(has_moved, "more is acknowledged", PATIENCE)
    return check(place.sql(READ), kinesis.records(place.name), epoch_rows=epoch_rows)
