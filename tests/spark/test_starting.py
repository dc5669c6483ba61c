"""What makes Spark start sooner changes nothing of what runs."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from strandline.spark import starting
from strandline.spark.starting import JAVA_OPTIONS, PREPARING, given_up, quick_python, with_archive
from tests.support import TIMEOUT


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the class archive would be, and nobody prepares one."""
    path = tmp_path / "classes.jsa"
    monkeypatch.setattr(starting, "archive_path", lambda: path)
    monkeypatch.setenv(PREPARING, "1")
    return path


def test_a_python_of_spark_loads_what_is_installed_and_all_else_that_it_is_told(tmp_path: Path) -> None:
    own = tmp_path / "own"
    home = Path(pyspark.__file__).parent
    archives = [
        home / "python/lib/pyspark.zip",
        *home.glob("python/lib/py4j-*-src.zip"),
        *home.glob("jars/spark-core_*"),
    ]
    told = os.pathsep.join(map(str, [*archives, own]))
    program = "import sys, pyspark; print(sys.executable, pyspark.__file__, *sys.path, sep='\\n')"
    result = subprocess.run(
        [quick_python(), "-c", program],
        env={**os.environ, "PYTHONPATH": told},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    python, found, *path = result.stdout.splitlines()
    assert (python, found) == (sys.executable, pyspark.__file__)
    assert str(own) in path
    assert not {*map(str, archives)} & {*path}


def test_the_class_archive_is_used_once_it_is_there_beside_what_the_user_tells_java(archive: Path) -> None:
    settings = {JAVA_OPTIONS: "-Xmx2g", "spark.master": "local"}
    assert with_archive(settings) == settings
    archive.touch()
    told = with_archive(settings)
    assert told[JAVA_OPTIONS].split()[:2] == ["-Xmx2g", f"-XX:SharedArchiveFile={archive}"]
    assert {**told, JAVA_OPTIONS: "-Xmx2g"} == settings


def test_an_archive_is_asked_for_once_unless_it_cannot_be_made(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: asked.append(command))
    with_archive({})
    assert not asked
    monkeypatch.delenv(PREPARING)
    with_archive({})
    assert len(asked) == 1
    given_up(archive).touch()
    with_archive({})
    assert len(asked) == 1
