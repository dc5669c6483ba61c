"""Spark starts where there is no Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.errors import Stalled, StrandlineError
from strandline.spark.session import configured, launch, prepare_environment
from strandline.spark.starting import PREPARING
from strandline.stack.java import find_java
from strandline.stack.processes import OVERLOADED

PROGRAM = """
from strandline.spark import session

def double(batches):
    import pyarrow.compute
    for batch in batches:
        yield type(batch).from_arrays([pyarrow.compute.multiply(batch.column(0), 2)], ["id"])

spark = session("no-java", master="local[2]", options={"spark.sql.shuffle.partitions": "2"})
print("java", spark._jvm.java.lang.System.getProperty("java.version"))
print("total", spark.range(1001).mapInArrow(double, "id long").groupBy().sum("id").collect()[0][0])
spark.stop()
"""


@pytest.mark.soak
def test_spark_runs_with_no_java_on_the_path(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for directory in (Path("/bin"), Path("/usr/bin")):
        for tool in directory.iterdir():
            link = tools / tool.name
            if not tool.name.startswith("java") and not link.is_symlink():
                link.symlink_to(tool)
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": str(tools), PREPARING: "1"}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=590, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    java, total = result.stdout.splitlines()[-2:]
    assert java.startswith("java 21.")
    assert total == "total 1001000"


SESSIONS = """
from strandline.errors import SparkEnded
from strandline.spark.session import opened

def run(kill):
    with opened("again", master="local[1]", options={}, sources=()) as spark:
        jvm = spark.sparkContext._gateway.proc
        if kill:
            jvm.kill()
        assert spark.sparkContext.defaultParallelism == 1
    return jvm

try:
    run(kill=True)
except SparkEnded as error:
    print(error)
print("ended", run(kill=False).poll() is not None)
"""


@pytest.mark.server
def test_a_session_ends_its_jvm_and_the_next_has_its_own_even_where_that_was_killed() -> None:
    result = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, timeout=590, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    ended = f"Spark's JVM has ended by itself, or was killed; {OVERLOADED}"
    assert result.stdout.splitlines() == [ended, "ended True"]
    assert "Traceback" not in result.stderr


def spark_that(program: str, home: Path) -> None:
    """A Spark that is started by a program of ours."""
    script = home / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{program}\n")
    script.chmod(0o755)


def test_spark_is_started_with_our_java_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_that('"$JAVA_HOME/bin/java" -version 2>&1; exit 3', tmp_path)
    (tmp_path / "log").mkdir()
    for name, value in {
        "SPARK_HOME": str(tmp_path),
        "PATH": str(tmp_path),
        "JAVA_HOME": "",
        "PYSPARK_PYTHON": "",
    }.items():
        monkeypatch.setenv(name, value)
    find_java.cache_clear()
    try:
        prepare_environment("local[1]")
        with pytest.raises(StrandlineError, match=r"does not start: .* \(OpenJDK .* \(build 21\..*"):
            launch(configured("ours", "local[1]", {}), tmp_path / "log" / "spark.log")
    finally:
        find_java.cache_clear()


def test_a_jvm_that_stands_still_while_it_starts_is_killed_and_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_that("exec sleep 600", tmp_path)
    (tmp_path / "log").mkdir()
    conf = configured("stalled", "local[1]", {})
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(Stalled) as failure:
        launch(conf, tmp_path / "log" / "spark.log", silence_s=1.0)
    problem = "Spark at local[1] does not start: its JVM made no progress for 1 s and was ended"
    assert str(failure.value) == f"{problem}; {OVERLOADED}"


def test_a_jvm_that_is_slow_to_start_and_logs_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_that("for step in 1 2 3 4 5 6 7 8 9 10; do echo step $step; sleep 0.5; done; exit 3", tmp_path)
    (tmp_path / "log").mkdir()
    conf = configured("slow", "local[1]", {})
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(StrandlineError, match=r"does not start: .* \(step 10\)$"):
        launch(conf, tmp_path / "log" / "spark.log", silence_s=4.0)


STALLING = """
import pathlib, sys, threading, time
from strandline.cli import commands
from strandline.spark.session import opened, stopped_by

place, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])

def work(_):
    for step in range(20):
        time.sleep(seconds / 20)
        place.write_text("x" * step)

def run():
    with opened("stalling", master="local[1]", options={}, sources=()) as spark:
        context = spark.sparkContext
        with stopped_by(threading.Event(), context, "stopped", progress=lambda: place.stat().st_size, silence_s=4.0):
            context.parallelize([1], 1).foreach(work)

commands.app.command(run, name="run")
sys.exit(commands.main(["run"]))
"""


@pytest.mark.parametrize(
    ("seconds", "end"),
    [
        pytest.param("12", (0, ""), marks=pytest.mark.soak),
        ("6000", (1, f"strandline: Spark at local[1] made no progress for 4 s and was ended; {OVERLOADED}\n")),
    ],
)
def test_work_on_spark_ends_with_one_line_when_it_stands_still_and_not_when_it_is_slow(
    seconds: str, end: tuple[int, str], tmp_path: Path
) -> None:
    (tmp_path / "done").touch()
    result = subprocess.run(
        [sys.executable, "-c", STALLING, tmp_path / "done", seconds],
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    said = "".join(line for line in result.stderr.splitlines(True) if line.startswith("strandline"))
    assert (result.returncode, said) == end
    assert "Traceback" not in result.stderr
