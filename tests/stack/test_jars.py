"""The jars in use are the pinned ones, whole, or none at all."""

import shutil
from pathlib import Path
from threading import Event

import pytest

from strandline.errors import FetchFailed, StartCancelled
from strandline.stack.cache import cache_dir
from strandline.stack.jars import kafka_jars, kafka_version, pinned
from strandline.stack.java import find_java

UNREACHABLE = "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9 -Divy.default.ivy.user.dir="


@pytest.fixture
def cached(kafka: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of our own with the jars in it (asking for `kafka` makes sure that they have been fetched)."""
    copy = shutil.copytree(cache_dir() / f"kafka-{kafka_version()}", tmp_path / f"kafka-{kafka_version()}")
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path))
    return copy


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{UNREACHABLE}{tmp_path}")


def _cut_short(jar: Path) -> None:
    jar.write_bytes(jar.read_bytes()[:-100])


def _alter(jar: Path) -> None:
    content = bytearray(jar.read_bytes())
    content[len(content) // 2] ^= 1
    jar.write_bytes(content)


@pytest.mark.parametrize("damage", [_cut_short, _alter, Path.unlink])
def test_a_damaged_jar_is_noticed_and_fetched_again(
    damage: object, cached: Path, local_repository: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in local_repository.items():
        monkeypatch.setenv(name, value)
    jar = cached / f"kafka_2.13-{kafka_version()}.jar"
    whole = jar.read_bytes()
    damage(jar)  # type: ignore[operator]
    assert jar in kafka_jars(find_java(), Event())
    assert jar.read_bytes() == whole


def test_a_sound_cache_needs_no_network(cached: Path, offline: None) -> None:
    assert [path.parent for path in kafka_jars(find_java(), Event())] == [cached] * len(pinned())


def test_without_network_the_first_run_names_the_package(
    tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_CACHE", str(tmp_path / "empty"))
    first = pinned()[0]
    with pytest.raises(FetchFailed, match=f"cannot fetch {first.coordinates} .*no package server answers") as failure:
        kafka_jars(find_java(), Event())
    assert "\n" not in str(failure.value)


def test_a_jar_that_differs_from_its_checksum_is_never_put_in_use(
    cached: Path, local_repository: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = Path(local_repository["JAVA_TOOL_OPTIONS"].partition("=")[2])
    forged = shutil.copytree(genuine, tmp_path / "forged")
    _alter(next(forged.rglob("kafka-clients.jar")))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Divy.default.ivy.user.dir={forged}")
    shutil.rmtree(cached)
    with pytest.raises(FetchFailed, match=r"org\.apache\.kafka:kafka-clients:\S+: it differs from its checksum"):
        kafka_jars(find_java(), Event())
    assert not cached.exists()


def test_a_fetch_can_be_cancelled(cached: Path, offline: None) -> None:
    shutil.rmtree(cached)
    cancelled = Event()
    cancelled.set()
    with pytest.raises(StartCancelled):
        kafka_jars(find_java(), cancelled)
