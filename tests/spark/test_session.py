"""Spark starts where there is no Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.spark.starting import PREPARING

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
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200, check=False
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


@pytest.mark.timeout(600)
def test_a_session_ends_its_jvm_and_the_next_has_its_own_even_where_that_was_killed() -> None:
    result = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True, timeout=590, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines() == ["Spark's JVM has ended by itself, or was killed", "ended True"]
    assert "Traceback" not in result.stderr
