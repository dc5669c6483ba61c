"""Kafka's jars as a package server on disk."""

import shutil

import pytest

from strandline.stack.cache import cache_dir
from strandline.stack.jars import kafka_version, pinned


@pytest.fixture(scope="session")
def local_repository(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Kafka's jars as a repository on disk, and the setting that makes Ivy look there first: no network needed."""
    ivy = tmp_path_factory.mktemp("ivy")
    for jar in pinned():
        place = ivy / "local" / jar.organisation / jar.module / jar.revision / "jars" / f"{jar.module}.jar"
        place.parent.mkdir(parents=True)
        shutil.copy(cache_dir() / f"kafka-{kafka_version()}" / jar.file_name, place)
    return {"JAVA_TOOL_OPTIONS": f"-Divy.default.ivy.user.dir={ivy}"}
