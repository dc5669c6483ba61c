"""What makes Spark start sooner on this machine: its classes laid out beforehand, and PySpark loaded compiled.

- A JVM spends most of its start on finding, checking and compiling classes. What it has once laid out it writes down
  when it ends (`class_archive.py` has one do so, once, in the background), and every later one only maps that file.
- Spark puts an archive of PySpark's sources before everything else that its Python processes can load, and each of a
  dozen of them compiles that anew. The same PySpark is installed beside it, compiled.

Neither changes what runs: where something does not fit, Java and Python pass over it.
"""

import hashlib
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pyspark

from strandline.stack.cache import cache_dir
from strandline.stack.java import find_java

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# One that does not fit is nothing that anybody has to hear of.
MAPPED = "-XX:SharedArchiveFile={archive} -Xlog:cds*=off"
# Whoever prepares an archive is not to have another prepared.
PREPARING = "STRANDLINE_PREPARING_CLASSES"
PYTHON = """\
#!/bin/sh
# Spark names its copy of PySpark in archives, which are compiled anew in every process; the one installed is the same.
set -f
kept=
IFS=:
for place in $PYTHONPATH; do
  case $place in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept=$kept:$place ;;
  esac
done
PYTHONPATH=${{kept#:}} exec {python} "$@"
"""

log = logging.getLogger(__name__)


def with_archive(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings, with the class archive for the driver's JVM; where there is none yet, one is being prepared."""
    archive = archive_path()
    if not archive.exists():
        _prepare(archive)
        return dict(settings)
    given = settings.get(JAVA_OPTIONS, "")
    return {**settings, JAVA_OPTIONS: f"{given} {MAPPED.format(archive=archive)}".strip()}


@cache
def archive_path() -> Path:
    """Where the class archive of this Spark on this Java is, or will be."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    jars = home / "jars"
    # Another when the jars are: Java would pass over one that was made of others.
    installed = jars.stat().st_mtime_ns if jars.exists() else 0
    told = "\n".join([find_java().banner, pyspark.__version__, str(home), str(installed)])
    return cache_dir() / f"spark-{pyspark.__version__}-{hashlib.sha256(told.encode()).hexdigest()[:16]}.jsa"


def given_up(archive: Path) -> Path:
    """Is there when the archive cannot be made, and says why."""
    return archive.with_suffix(".failed")


def _prepare(archive: Path) -> None:
    """In a process that nobody waits for: it has time, and is not to take any from us."""
    if PREPARING in os.environ or given_up(archive).exists():
        return
    log.info("spark: preparing for fast starts in the background (a minute or two, once)")
    subprocess.Popen(
        [sys.executable, "-m", "strandline.spark.class_archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, PREPARING: "1"},
        start_new_session=True,
    )


def quick_python() -> Path:
    """A Python that is this one, and loads the PySpark that is installed in it."""
    text = PYTHON.format(python=shlex.quote(sys.executable))
    script = cache_dir() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not script.exists():
        fresh = script.with_name(f"{script.name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return script
