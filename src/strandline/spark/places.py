"""Where the members of a fleet run: a Spark application, how many tasks it can run at a time, and our code on it."""

import os
import re
import time
import zipfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any

from strandline.core.spark_master import is_local
from strandline.errors import OptionError, StrandlineError
from strandline.spark.session import configured, launch
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
    """A Spark application; open, it runs."""

    def __init__(self, name: str, master: str, options: Mapping[str, str]) -> None:
        slots = local_slots(master)
        # Only a master that is written so starts a task anew in local mode.
        self.master = master if slots is None else f"local[{slots},{MOST_FAILURES}]"
        self._conf = configured(name, self.master, {**FOR_A_QUIET_DRIVER, **options, **FOR_LONG_TASKS})
        self._temporary = Temporary("fleet")

    def open(self) -> None:
        """Start it; to be closed then."""
        self.context = launch(self._conf, self._temporary.path / "spark.log")
        if not is_local(self.master):
            self.context.addPyFile(str(archived(self._temporary.path)))

    def close(self) -> None:
        """Stop it."""
        self.context.stop()
        self._temporary.close()

    @property
    def host(self) -> str:
        """By which name the executors reach this process."""
        return str(self.context.getConf().get("spark.driver.host"))

    @property
    def bind(self) -> str:
        """Where this process listens for them."""
        return str(self.context.getConf().get("spark.driver.bindAddress", self.host))

    def slots(self, asked: int | None, most: int, stopped: Event) -> int:
        """How many tasks run at a time: as soon as they are as many as asked for, or as can be, or no more come."""
        wanted, settled = (most, SETTLED_AFTER) if asked is None else (asked, REFUSED_AFTER)
        found, since = 0, time.monotonic()
        while not stopped.wait(LOOK_EVERY):
            now, slots = time.monotonic(), self._slots()
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

    def _slots(self) -> int:
        java: Any = self.context._jsc.sc()
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
