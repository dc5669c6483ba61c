"""A standalone cluster of Spark: a master and two workers, each a process of its own, on loopback, surely stopped."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pyspark

from strandline.stack.java import find_java
from strandline.stack.ports import LOOPBACK, free_port
from strandline.stack.processes import Child
from tests.spark.jvm import SHORT_LIVED
from tests.support import TIMEOUT, owned_processes

HOME = Path(pyspark.__file__).parent
WORKERS, CORES = 2, 2


@dataclass
class Cluster:
    """Where it is, and whose; the processes that belong to it."""

    master: str
    owner: int
    """The process that has started it."""

    @property
    def options(self) -> list[str]:
        """How a fleet is told to run here."""
        settings = {
            "executor.memory": "512m",
            "executor.extraJavaOptions": SHORT_LIVED,
            "driver.host": LOOPBACK,
            "driver.bindAddress": LOOPBACK,
        }
        given = [part for name, value in settings.items() for part in ("--spark", f"spark.{name}={value}")]
        return ["--master", self.master, *given]

    def executors(self) -> list[int]:
        """The Java processes that run tasks."""
        return [pid for pid in owned_processes(self.owner) if "CoarseGrainedExecutor" in command(pid)]

    def members(self) -> set[int]:
        """The Python processes that run a member: each has a supervisor as its child, and is Spark's still."""
        found = owned_processes(self.owner)
        supervised = {parent(pid) for pid in found if " -I -S -c " in command(pid)}
        return {pid for pid in supervised if pid in found and parent(pid) in found}


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


@contextmanager
def standalone(directory: Path) -> Iterator[Cluster]:
    """Start it; when both workers have registered it is ready."""
    env = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ} | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=false",
    }
    port = free_port()
    url = f"spark://{LOOPBACK}:{port}"

    def start(name: str, *arguments: str) -> Child:
        program = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", LOOPBACK, *arguments]
        log = directory / f"{name}-{len(children)}.log"
        child = Child(name=name, command=program, log=log, cwd=directory, env=env)
        child.start()
        running.callback(child.stop, signal.SIGTERM, 10)
        children.append(child)
        return child

    def says(child: Child, what: str) -> bool:
        return child.log.exists() and re.search(what, child.log.read_text(errors="replace")) is not None

    children: list[Child] = []
    with ExitStack() as running:
        master = start("master.Master", "--port", str(port), "--webui-port", "0")
        master.wait_until(lambda: says(master, "I have been elected leader"), 2 * TIMEOUT, Event())
        workers = []
        for number in range(WORKERS):
            place = directory / f"work-{number}"
            place.mkdir()
            arguments = ["--cores", str(CORES), "--memory", "2g", "--webui-port", "0", "--work-dir", str(place), url]
            workers.append(start("worker.Worker", *arguments))
        for worker in workers:
            worker.wait_until(lambda w=worker: says(w, "Successfully registered"), 2 * TIMEOUT, Event())  # type: ignore[misc]
        yield Cluster(url, os.getpid())
