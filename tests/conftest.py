"""What every test may ask for: real servers, started once a run."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from strandline.stack.postgres import Postgres

pytest_plugins = ["strandline.stack.testing"]

TESTS = Path(__file__).parent

# Shared machines stall for longer than Hypothesis allows an example to take; no test here times anything.
settings.register_profile("strandline", deadline=None)
settings.register_profile(
    "quick", deadline=None, max_examples=25
)  # for `make quick`; `make test` tries four times as many
settings.load_profile("strandline")

# For the JVM of every Spark that a test starts: it lives a minute, and half of its CPU would go to compiling what is
# not run again.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# What shares something that is dear to start goes to one process of a run: all of tests/spark/ but those that start
# applications of their own, and all of tests/proxy/ but those that need clusters of their own.
SHARED = {
    "spark": re.compile(r"tests/spark/(?!test_(cdc_run|fleet|session)\.py)"),
    "proxy": re.compile(r"tests/proxy/(?!test_(faults|security|two_brokers|java|config)\.py)"),
}


# Fixtures that start a server or a browser, and folders and files where most tests start servers, or processes that
# take seconds to start. Any other test that does so has the mark `server`.
STARTS_A_SERVER = {
    *("chromium", "cluster", "clusters", "either", "fragile", "guarded", "kafka", "kinesis", "moto", "pair"),
    *("postgres", "postgres16", "secure_kafka", "session", "spark", "three"),
}
FOLDERS_WITH_SERVERS = {"demo", "stack"}
PURE_FILES_THERE = {"stack/test_faults.py", "stack/test_streams.py"}
FILES_WITH_PROCESSES = {
    "cdc/test_replication.py",
    "gateway/test_workers.py",
    "proxy/test_filters.py",
    "proxy/test_reload.py",
    "spark/test_report_command.py",
    "spark/test_session.py",
    "spark/test_supervisor.py",
    "test_bench.py",
    "test_contracts.py",
    "wire/test_kernel.py",
    "workers/test_crew.py",
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without servers, do not even load what needs them: that takes a fifth of the time of `make quick`."""
    if "not server" not in config.option.markexpr or not collection_path.is_relative_to(TESTS):
        return None
    return _starts_processes(collection_path) or None


def _starts_processes(path: Path) -> bool:
    place = path.relative_to(TESTS)
    if str(place) in PURE_FILES_THERE:
        return False
    return not FOLDERS_WITH_SERVERS.isdisjoint(place.parts) or str(place) in FILES_WITH_PROCESSES


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server; the longest files first, so that all processes of a run end together."""
    items.sort(key=lambda item: item.path.parent.name not in {"spark", "demo", "stack"})
    for item in items:
        fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
        if _starts_processes(item.path) or STARTS_A_SERVER.intersection(fixtures):
            item.add_marker("server")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files go to the processes of a run in the order above, each as one.

    Those that share a session of Spark, or clusters behind a proxy, go as one too. These are up once then, and keep a
    core busy while the tests beside them wait.
    """
    config.option.loadscopereorder = False
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler


def _scope(test: str) -> str:
    return next((name for name, files in SHARED.items() if files.match(test)), test.partition("::")[0])


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes do not name a test: packed ones hold the second they were made in, and both processes must agree."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def freezes_count_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """For limits of a second or two on silence: a machine that stops for as long is not taken for a step that does."""
    monkeypatch.setattr("strandline.stalls.LONGEST_GAP_S", 0.5)


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other users may enter: as root, Postgres runs as one of them, and pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture(scope="session")
def postgres16() -> Iterator[Postgres]:
    """A server of the oldest version whose changes we read."""
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        server = Postgres(path / "postgres16", temporary=True, major=16)
        server.start(Event())
        try:
            yield server
        finally:
            server.stop()
