"""What every test may ask for: real servers, started once a run."""

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["strandline.stack.testing"]

# Shared machines stall for longer than Hypothesis allows an example to take; no test here times anything.
settings.register_profile("strandline", deadline=None)
settings.load_profile("strandline")

# For the JVM of every Spark that a test starts: it lives a minute, and half of its CPU would go to compiling what is
# not run again.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# All of tests/spark/ but those that start applications of their own.
SHARES_SPARK = re.compile(r"tests/spark/(?!test_(cdc_run|fleet|session)\.py)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that all processes of a run end together."""
    items.sort(key=lambda item: item.path.parent.name not in {"spark", "demo", "stack"})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Files go to the processes of a run in the order above, each as one.

    Those that share a session of Spark go as one too. It is up once then, and keeps a core busy while the tests beside
    it wait.
    """
    config.option.loadscopereorder = False
    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = lambda test: "spark" if SHARES_SPARK.match(test) else test.partition("::")[0]
    return scheduler


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes do not name a test: packed ones hold the second they were made in, and both processes must agree."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that other users may enter: as root, Postgres runs as one of them, and pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="strandline-test-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path
