"""A Spark session that starts anywhere: with the Java that is there, our own Python, and on loopback only.

And our data sources in any session.
"""

import logging
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from strandline.core.spark_master import check_master, is_local
from strandline.errors import SparkEnded, Stalled, StrandlineError
from strandline.spark.starting import quick_python, with_archive
from strandline.stack.java import find_java
from strandline.stack.processes import OVERLOADED
from strandline.stalls import LOOK_EVERY_S, StallDetector, bytes_below
from strandline.temporary import Temporary

if TYPE_CHECKING:
    import subprocess

LOOPBACK_ONLY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
CANCEL_EVERY_S = 0.5
START_SILENCE_S = 300.0
"""A JVM that makes no progress for so long while it starts is killed."""
CLUSTER_SILENCE_S = 1800.0
"""The same where it may wait for its turn on a cluster, of which nothing can be seen here."""
WORK_SILENCE_S = 900.0
"""The same while it works, on this machine."""
JVM_ENDS_WITHIN_S = 5.0
JVM_NOTICED_WITHIN_S = 1.0


def session(app_name: str, *, master: str = "local[*]", options: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process; made if there is none.

    With a local master it listens on loopback and has no web page, unless `options` say otherwise.
    """
    prepare_environment(check_master(master))
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in with_archive({**_defaults(master), **(options or {})}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


@contextmanager
def opened(
    app_name: str, *, master: str, options: Mapping[str, str], sources: Sequence[type[DataSource]] | None = None
) -> Iterator[SparkSession]:
    """A session for one command: it knows our data sources, all or those named, and leaves the terminal to it."""
    conf = configured(app_name, master, options)
    with Temporary("spark") as temporary:
        context = launch(conf, temporary.path / "spark.log")
        try:
            with jvm_end_reported(context):
                spark = SparkSession(context)
                if sources is None:
                    register(spark)
                for source in sources or ():
                    spark.dataSource.register(source)
                yield spark
        finally:
            end(context)


@contextmanager
def jvm_end_reported(context: SparkContext, stalls: Sequence[str] = ()) -> Iterator[None]:
    """Report a JVM that is gone in one line, in place of what each call into it raises then.

    `stalls` is the list that `killed_when_stalled` adds to.
    """
    process = jvm_of(context)
    try:
        yield
    except (Py4JError, OSError):
        if stalls:
            raise Stalled(f"Spark at {context.master}", stalls[0], OVERLOADED) from None
        if not _has_ended(process, JVM_NOTICED_WITHIN_S):
            raise
        raise SparkEnded(f"Spark's JVM has ended by itself, or was killed; {OVERLOADED}") from None


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Some of it goes to the logger of all."""
    return "py4j" not in record.pathname


def end(context: SparkContext) -> None:
    """Stop Spark and end its JVM: PySpark would make the next session of this process in it, dead or alive."""
    with warnings.catch_warnings(), suppress(Py4JError, OSError):
        # Of a JVM that is gone already.
        warnings.simplefilter("ignore", RuntimeWarning)
        context.stop()
    # Where the JVM was gone, what is left to do on our side; else nothing.
    context.stop()
    process = jvm_of(context)
    if context._gateway is not None:
        context._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    if process.stdin is not None:
        # At its end the JVM ends too.
        process.stdin.close()
    _has_ended(process, JVM_ENDS_WITHIN_S)
    if process.returncode is None:
        # And with it the Python processes that it has left: one that is frozen would stay.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_ended(process: "subprocess.Popen[bytes]", within_s: float) -> bool:
    """Whether the JVM ends in time. It is not waited for, so its number stays that of its group, and nobody else's."""
    if process.returncode is not None:
        return True
    handle = os.pidfd_open(process.pid)
    ending = select.poll()
    ending.register(handle, select.POLLIN)
    try:
        return bool(ending.poll(within_s * 1000))
    finally:
        os.close(handle)


def jvm_of(context: SparkContext) -> "subprocess.Popen[bytes]":
    """The process that Spark runs in, which we have started."""
    found: subprocess.Popen[bytes] = context._gateway.proc  # type: ignore[union-attr]
    return found


def configured(app_name: str, master: str, options: Mapping[str, str]) -> SparkConf:
    """The settings of an application of ours."""
    conf = SparkConf(loadDefaults=False).setMaster(check_master(master)).setAppName(app_name)
    for key, value in with_archive({**_defaults(master), **options}).items():
        conf.set(key, value)
    return conf


def launch(conf: SparkConf, log: Path, *, silence_s: float | None = None) -> SparkContext:
    """Start Spark, with what the JVM says in a file. A JVM that makes no progress for so long is killed."""
    master = conf.get("spark.master") or ""
    prepare_environment(master)
    # What Py4J logs is raised as well, and when a query is stopped it logs pages of the JVM's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    if silence_s is None:
        silence_s = START_SILENCE_S if is_local(master) else CLUSTER_SILENCE_S
    stalls: list[str] = []
    try:
        with (
            log.open("wb") as out,
            killed_when_stalled(stalls, lambda: _child_that_writes(log), lambda: bytes_below(log.parent), silence_s),
        ):
            # In a session of its own: a Ctrl-C at the terminal is for us, who end its work first.
            how = {"stdout": out, "stderr": out, "start_new_session": True}
            gateway = launch_gateway(conf, how)  # type: ignore[no-untyped-call]
            with _signals_kept():
                context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError) as error:
        if stalls:
            raise Stalled(f"Spark at {master} does not start: its JVM", stalls[0], OVERLOADED) from None
        # What py4j raises quotes the JVM at length.
        problem = str(getattr(error, "java_exception", error)).strip().partition("\n")[0]
        raise StrandlineError(f"Spark at {master} does not start: {problem}{_last_words(log)}") from None
    # When the JVM is gone, it prints where it was when it learnt of it.
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    return context


@contextmanager
def _signals_kept() -> Iterator[None]:
    """A context takes Ctrl-C over, and raises from within whatever runs; it stays with whoever had it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextmanager
def killed_when_stalled(
    problems: list[str], find: Callable[[], int | None], progress: Callable[[], object], silence_s: float
) -> Iterator[None]:
    """Kill a JVM, with its Python processes, that makes no progress; what was wrong is added to the list then.

    From a thread beside: the one that asks Spark for something waits for its answer. `find` gives its process once
    there is one, which leads a group.
    """
    is_over = threading.Event()

    def watch() -> None:
        process, detector = None, None
        while not is_over.wait(min(LOOK_EVERY_S, silence_s)):
            if process is None or detector is None:
                process = find()
                detector = None if process is None else StallDetector(silence_s, progress, pid=process)
            elif (problem := detector.problem()) is not None:
                problems.append(problem)
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
                return

    watching = threading.Thread(target=watch, name="strandline-stalls", daemon=True)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()


def _child_that_writes(log: Path) -> int | None:
    """Our child whose standard output goes to a file: PySpark tells of the process only once the JVM has answered."""
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for child in children.read_text().split():
                if Path(f"/proc/{child}/fd/1").readlink() == log.resolve():
                    return int(child)
    return None


@contextmanager
def stopped_by(
    stopped: threading.Event,
    context: SparkContext,
    problem: str,
    *,
    progress: Callable[[], object] = lambda: None,
    silence_s: float | None = None,
) -> Iterator[None]:
    """Cancel Spark's jobs once a stop is asked for; that they fail then is told in one line.

    So is a JVM that is killed since it made no progress: `progress` changes while it works. It is watched where all of
    its work is on this machine.
    """
    is_over = threading.Event()

    def cancel() -> None:
        while not is_over.wait(CANCEL_EVERY_S):
            if stopped.is_set():
                with suppress(Py4JError, OSError):
                    context.cancelAllJobs()

    threading.Thread(target=cancel, name="stopping", daemon=True).start()
    stalls: list[str] = []
    jvm = jvm_of(context).pid
    watched = is_local(context.master or "")
    limit_s = WORK_SILENCE_S if silence_s is None else silence_s
    try:
        with killed_when_stalled(stalls, lambda: jvm, progress, limit_s) if watched else nullcontext():
            yield
    except (PySparkException, Py4JError, OSError) as error:
        if stalls:
            raise Stalled(f"Spark at {context.master}", stalls[0], OVERLOADED) from None
        if not stopped.is_set() or isinstance(error, OSError):
            raise
        raise StrandlineError(problem) from error
    finally:
        is_over.set()


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1][:300]})" if lines else ""


def _defaults(master: str) -> dict[str, str]:
    return {"spark.sql.session.timeZone": "UTC", **(LOOPBACK_ONLY if is_local(master) else {})}


def prepare_environment(master: str) -> None:
    """Name the Java and the Python to use, which Spark takes from the environment alone when it starts the JVM."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    quick = str(quick_python())
    if os.environ.get("PYSPARK_PYTHON", quick) in {quick, sys.executable}:
        # Executors elsewhere have a cache of their own.
        os.environ["PYSPARK_PYTHON"] = quick if is_local(master) else sys.executable


def register(spark: SparkSession) -> None:
    """Make the data sources of Strandline known to a session: `spark.read.format("kafka_ordered")`."""
    # Not before it is asked for: they load all that decodes records, and members of a fleet do without.
    from strandline.spark.kinesis import Kinesis  # noqa: PLC0415
    from strandline.spark.ordered import KafkaOrdered  # noqa: PLC0415
    from strandline.spark.postgres_wal import PostgresWal  # noqa: PLC0415
    from strandline.spark.replay_sink import HttpReplay  # noqa: PLC0415
    from strandline.spark.traffic import HttpTraffic  # noqa: PLC0415

    for source in (KafkaOrdered, HttpTraffic, HttpReplay, PostgresWal, Kinesis):
        spark.dataSource.register(source)
