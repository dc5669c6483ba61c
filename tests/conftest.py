"""What every test may ask for: real servers, started once a run."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["strandline.stack.testing"]

# Shared machines stall for longer than Hypothesis allows an example to take; no test here times anything.
settings.register_profile("strandline", deadline=None)
settings.load_profile("strandline")

# For the JVM of every Spark that a test starts: it lives a minute, and half of its CPU would go to compiling what is
# not run again.
os.environ["SPARK_SUBMIT_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that both processes of a run end together."""
    items.sort(key=lambda item: item.path.parent.name not in {"spark", "demo"})


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
