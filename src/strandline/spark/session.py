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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from strandline.core.spark_master import check_master, is_local
from strandline.errors import SparkEnded, StrandlineError
from strandline.spark.starting import quick_python, with_archive
from strandline.stack.java import find_java
from strandline.temporary import Temporary

if TYPE_CHECKING:
    import subprocess

LOOPBACK_ONLY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
CANCEL_EVERY_S = 0.5
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
    # What it logs is raised as well, and when a query is stopped it logs pages of the JVM's.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    with Temporary("spark") as temporary:
        context = launch(conf, temporary.path / "spark.log")
        try:
            spark = SparkSession(context)
            if sources is None:
                register(spark)
            for source in sources or ():
                spark.dataSource.register(source)
            yield spark
        except (Py4JError, OSError):
            if not _has_ended(jvm_of(context), JVM_NOTICED_WITHIN_S):
                raise
            raise SparkEnded("Spark's JVM has ended by itself, or was killed") from None
        finally:
            _end(context)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Some of it goes to the logger of all."""
    return "py4j" not in record.pathname


def _end(context: SparkContext) -> None:
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


def launch(conf: SparkConf, log: Path) -> SparkContext:
    """Start Spark, with what the JVM says in a file."""
    prepare_environment(conf.get("spark.master") or "")
    try:
        with log.open("wb") as out:
            # In a session of its own: a Ctrl-C at the terminal is for us, who end its work first.
            how = {"stdout": out, "stderr": out, "start_new_session": True}
            gateway = launch_gateway(conf, how)  # type: ignore[no-untyped-call]
        with _signals_kept():
            context = SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, Py4JError, OSError) as error:
        # What py4j raises quotes the JVM at length.
        problem = str(getattr(error, "java_exception", error)).strip().partition("\n")[0]
        master = conf.get("spark.master")
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
def stopped_by(stopped: threading.Event, context: SparkContext, problem: str) -> Iterator[None]:
    """Cancel Spark's jobs once a stop is asked for; that they fail then is told in one line.

    From a thread beside: the one that asks Spark for something waits for its answer.
    """
    is_over = threading.Event()

    def cancel() -> None:
        while not is_over.wait(CANCEL_EVERY_S):
            if stopped.is_set():
                with suppress(Py4JError, OSError):
                    context.cancelAllJobs()

    threading.Thread(target=cancel, name="stopping", daemon=True).start()
    try:
        yield
    except (PySparkException, Py4JError) as error:
        if not stopped.is_set():
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
