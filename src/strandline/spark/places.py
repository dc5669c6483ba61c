"""Where the members of a fleet run: a Spark application, how many tasks it can run at a time, and our code on it."""

import os
import re
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from pyspark import SparkContext

from strandline.core.spark_master import is_local
from strandline.errors import OptionError, StrandlineError
from strandline.spark.session import configured, end, jvm_end_reported, jvm_of, killed_when_stalled, launch
from strandline.spark.starting import JAVA_OPTIONS
from strandline.spark.supervised import SUPERVISOR
from strandline.temporary import Temporary

MOST_FAILURES = 100
"""So often each task is started anew before Spark gives the run up."""
SLOTS_WITHIN = 60.0
"""How long the first executor has to come up."""
SETTLED_AFTER = 5.0
"""No further executor has come for so long: these are all."""
REFUSED_AFTER = 20.0
"""The same where they are fewer than were asked for."""
LOOK_EVERY = 0.2
SPARK_ENDS_WITHIN = 20.0
"""Once nothing is left for Spark to do, a JVM that makes no progress for so long is killed."""
LOCAL = re.compile(r"local(?:\[(?P<slots>\d+|\*)(?:,\s*\d+)?\])?")
FOR_LONG_TASKS = {
    # Two tries of one task would be two members, one of them beside the count.
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.maxFailures": str(MOST_FAILURES),
    # A process that had a member has its settings, and may have threads of it.
    "spark.python.worker.reuse": "false",
    "spark.locality.wait": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}

T = TypeVar("T")

# Its JVM starts tasks and waits: the second compiler would cost more than it gains.
FOR_A_QUIET_DRIVER = {"spark.ui.enabled": "false", JAVA_OPTIONS: "-XX:TieredStopAtLevel=1"}


def local_slots(master: str) -> int | None:
    """How many tasks a local master runs at a time; None for all other masters."""
    found = LOCAL.fullmatch(master)
    if found is None:
        return None
    slots = found["slots"]
    return os.cpu_count() or 1 if slots == "*" else int(slots or 1)


class Places:
    """A Spark application; open, it runs. All but `end_soon` waits for the JVM: call it from a thread of its own."""

    host: str
    """By which name the executors reach this process."""
    bind: str
    """Where this process listens for them."""

    def __init__(self, name: str, master: str, options: Mapping[str, str]) -> None:
        slots = local_slots(master)
        # Only a master that is written so starts a task anew in local mode.
        self.master = master if slots is None else f"local[{slots},{MOST_FAILURES}]"
        self._name = name
        self._options = {**FOR_A_QUIET_DRIVER, **options, **FOR_LONG_TASKS}
        self._is_over = Event()
        self._stalls: list[str] = []
        self._running = ExitStack()

    def open(self) -> None:
        """Start it; to be closed then, even where this fails."""
        directory = self._running.enter_context(Temporary("fleet")).path
        self._context = context = launch(configured(self._name, self.master, self._options), directory / "spark.log")
        jvm = jvm_of(context).pid
        self._running.enter_context(
            killed_when_stalled(
                self._stalls, lambda: jvm if self._is_over.is_set() else None, lambda: None, SPARK_ENDS_WITHIN
            )
        )
        self._running.callback(end, context)
        self.host, self.bind = self.ask(_addresses)
        if not is_local(self.master):
            self.ask(lambda context: context.addPyFile(str(archived(directory))))

    def ask(self, act: Callable[[SparkContext], T]) -> T:
        """Call into the JVM; that it is gone is raised as an error of ours."""
        with jvm_end_reported(self._context, self._stalls):
            return act(self._context)

    def end_soon(self) -> None:
        """Nothing is left for Spark to do: kill its JVM unless it ends what it does."""
        self._is_over.set()

    def close(self) -> None:
        """Stop it, with all its jobs, and end its JVM."""
        self.end_soon()
        self._running.close()

    def slots(self, asked: int | None, most: int, stopped: Event) -> int:
        """How many tasks run at a time: as soon as they are as many as asked for, or as can be, or no more come."""
        wanted, settled = (most, SETTLED_AFTER) if asked is None else (asked, REFUSED_AFTER)
        found, since = 0, time.monotonic()
        while not stopped.wait(LOOK_EVERY):
            now, slots = time.monotonic(), self.ask(_slots)
            if slots != found:
                found, since = slots, now
            if found >= wanted or now - since > (settled if found else SLOTS_WITHIN):
                break
        if not found and not stopped.is_set():
            raise StrandlineError(
                f"no executor of {self.master} came up within {SLOTS_WITHIN:g} s; look at the master's page whether it "
                "has workers with free cores and memory"
            )
        return found


def _addresses(context: SparkContext) -> tuple[str, str]:
    settings = context.getConf()
    host = str(settings.get("spark.driver.host"))
    return host, str(settings.get("spark.driver.bindAddress", host))


def _slots(context: SparkContext) -> int:
    java: Any = context._jsc.sc()
    return int(java.maxNumConcurrentTasks(java.resourceProfileManager().defaultResourceProfile()))


def archived(directory: Path) -> Path:
    """This package as an archive, so that executors run what we run; what it needs must be there.

    Compiled, as nothing keeps what would be compiled from it there, and members that are started anew are in haste.
    """
    archive = directory / "strandline.zip"
    root = Path(str(files("strandline")))
    with zipfile.PyZipFile(str(archive), "w", zipfile.ZIP_DEFLATED) as out:
        out.writepy(str(root))
        out.write(root / "spark" / SUPERVISOR, f"strandline/spark/{SUPERVISOR}")
    return archive


def check_workers(wanted: int | None, *, slots: int, partitions: int, master: str) -> int:
    """How many members there are to be; more than there is room or work for is refused."""
    if wanted is None:
        return min(slots, partitions)
    if wanted > partitions:
        raise OptionError(
            f"--workers {wanted}: partitions of the topic: {partitions}; more members than that have nothing to do"
        )
    if wanted > slots:
        raise OptionError(
            f"--workers {wanted}: tasks that {master} runs at a time: {slots}, and each member is one; "
            "give it more cores or ask for fewer workers"
        )
    return wanted
