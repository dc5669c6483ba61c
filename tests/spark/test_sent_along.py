"""Code and packages that executors have from nowhere but the driver: by an archive, and by modules sent to them.

Their Python knows nothing but its standard library, and they stand in directories of their own.
"""

import asyncio
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from strandline.spark.places import archived
from strandline.stack import KafkaCluster
from tests.replay.members import assert_all_came_in_order, steady
from tests.replay.support import serving
from tests.spark.cluster import Cluster
from tests.spark.test_fleet import PARTITIONS, Driver
from tests.support import TIMEOUT

NEEDED = ["confluent-kafka", "kio", "msgspec", "opentelemetry-api", "prometheus-client", "protobuf", "pyyaml", "uvloop"]
"""What a member loads; `pip install --target` would bring the same."""
POLICY = """\
class Never:
    def decide(self, attempt, source, target, request):
        return None

never = Never()
"""


def bare_python(directory: Path) -> Path:
    """The same Python, without the packages that are installed for it."""
    program = directory / "python"
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    program.write_text(f'#!/bin/sh\nexec {base} -S "$@"\n')
    program.chmod(0o755)
    return program


def run_bare(python: Path, program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))}
    return subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, timeout=TIMEOUT, cwd="/", env=env, check=False
    )


def with_all_they_need(names: list[str]) -> set[str]:
    found: set[str] = set()
    while names:
        name = names.pop().lower()
        if name not in found:
            found.add(name)
            wanted = map(Requirement, metadata.requires(name) or [])
            names += [each.name for each in wanted if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def packed(directory: Path) -> Path:
    """As `pip install --target DIRECTORY` and `tar` make it: packages that work wherever they are unpacked."""
    archive = directory / "packages.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as out:
        for name in sorted(with_all_they_need(list(NEEDED))):
            for file in metadata.files(name) or []:
                if ".." not in file.parts and "__pycache__" not in file.parts:
                    out.add(file.locate(), arcname=str(file), recursive=False)
    return archive


def test_the_archive_of_our_code_is_loaded_where_nothing_is_installed(tmp_path: Path) -> None:
    python = bare_python(tmp_path)
    assert "No module named 'strandline'" in run_bare(python, "import strandline").stderr
    archive = archived(tmp_path)
    found = run_bare(python, "import strandline.core.frontier as f; print(f.__file__)", archive)
    assert found.stdout.startswith(str(archive)), found.stderr
    with zipfile.ZipFile(archive) as kept:
        assert "strandline/spark/supervisor.py" in kept.namelist()


@pytest.mark.timeout(10 * TIMEOUT)
def test_members_run_where_nothing_is_installed_with_packages_code_and_policy_sent_along(
    kafka: KafkaCluster, cluster: Cluster, tmp_path: Path
) -> None:
    topic, connections, requests = "fleet-sent-along", 6, 5
    steady(kafka, topic, connections=connections, requests=requests, every=50, partitions=PARTITIONS)
    (tmp_path / "own_policy.py").write_text(POLICY)
    python, packages = bare_python(tmp_path), packed(tmp_path)
    for name in ("strandline", "msgspec", "own_policy"):
        assert f"No module named '{name}'" in run_bare(python, f"import {name}").stderr
    settings = {
        "archives": f"{packages}#packages",
        "executorEnv.PYTHONPATH": "packages",
        "pyspark.python": str(python),
        "submit.pyFiles": str(tmp_path / "own_policy.py"),
    }
    given = [part for name, value in settings.items() for part in ("--spark", f"spark.{name}={value}")]

    async def main() -> None:
        async with serving() as server, Driver(kafka, topic, server, tmp_path) as driver:
            await driver.start("--workers", "2", "--retry", "own_policy:never", *cluster.options, *given)
            assert await driver.ends() == 0, driver.log
        assert_all_came_in_order(server.arrivals, connections, requests)

    asyncio.run(main())
