"""A data directory that is not ours to use is refused by name and left as it was."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from strandline.errors import DataRefused, OptionError
from strandline.stack import Stack
from strandline.stack.data import TEMPORARY_PREFIX, open_data
from strandline.stack.jars import kafka_version
from tests.support import fingerprint


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that a stack of two brokers was given, and has left."""
    path = tmp_path_factory.mktemp("made") / "data"
    with Stack(["kafka"], kafka_brokers=2, data=path):
        pass
    return path


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of that directory."""
    yield shutil.copytree(made, tmp_path / "data")


def refused(path: Path, *, kafka_brokers: int = 1) -> str:
    """Why a stack refuses a directory; fails if it changes anything in it."""
    before = fingerprint(path)
    with pytest.raises(DataRefused) as refusal:
        Stack(["kafka"], data=path, kafka_brokers=kafka_brokers).start()
    assert fingerprint(path) == before
    assert str(refusal.value).endswith("; nothing in it was changed")
    return str(refusal.value)


def test_data_of_another_kafka_version(data: Path) -> None:
    identity = data / "kafka-1" / "cluster.json"
    identity.write_text(identity.read_text().replace(kafka_version(), "3.9.0"))
    assert f"kafka-1: holds data of Kafka 3.9.0, and this is {kafka_version()}" in refused(data, kafka_brokers=2)


def test_a_broker_of_another_cluster(data: Path) -> None:
    meta = data / "kafka-1" / "broker-2" / "meta.properties"
    ours = json.loads((data / "kafka-1" / "cluster.json").read_text())["cluster_id"]
    meta.write_text(meta.read_text().replace(ours, "AAAAAAAAAAAAAAAAAAAAAA"))
    problem = f"broker-2: belongs to cluster AAAAAAAAAAAAAAAAAAAAAA, and its neighbours to {ours}"
    assert problem in refused(data, kafka_brokers=2)


def test_another_number_of_brokers(data: Path) -> None:
    problem = "kafka-1: holds data of 2 Kafka broker(s), not of 1: use --kafka-brokers 2, or another directory"
    assert problem in refused(data, kafka_brokers=1)


def test_brokers_without_an_identity(data: Path) -> None:
    (data / "kafka-1" / "cluster.json").unlink()
    assert "has brokers but no cluster.json" in refused(data, kafka_brokers=2)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_an_identity_that_cannot_be_read(data: Path, text: str) -> None:
    (data / "kafka-1" / "cluster.json").write_text(text)
    assert "cluster.json: " in refused(data, kafka_brokers=2)


def test_a_directory_of_a_later_format(data: Path) -> None:
    (data / "stack.json").write_text('{"format": 2}')
    assert "has data of format 2, and this strandline reads format 1" in refused(data, kafka_brokers=2)


def test_a_directory_that_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    assert "is not empty and was not made by strandline" in refused(tmp_path)


def test_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(OptionError, match=r"--data takes a directory, and .*/data is a file"):
        Stack(data=tmp_path / "data").start()
    with pytest.raises(DataRefused, match="cannot be read: Not a directory"):
        open_data(tmp_path / "data", Event())


def test_postgres_data_without_its_password_or_of_another_version(open_dir: Path) -> None:
    path = open_dir / "data"
    with Stack(["postgres"], data=path):
        pass
    (path / "postgres" / "password").rename(path / "elsewhere")
    with pytest.raises(DataRefused, match="password: is missing, and without it nobody can log in"):
        Stack(["postgres"], data=path).start()
    (path / "elsewhere").rename(path / "postgres" / "password")
    (path / "postgres" / "data" / "PG_VERSION").write_text("15\n")
    before = fingerprint(path)
    with pytest.raises(DataRefused, match="holds data of Postgres 15, and this is 18"):
        Stack(["postgres"], data=path).start()
    assert fingerprint(path) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs Postgres as another user")
def test_a_directory_that_the_user_of_postgres_cannot_reach(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(DataRefused, match="choose a directory that others may enter"):
        Stack(["postgres"], data=tmp_path / "data").start()
    assert not list(tmp_path.iterdir())


def test_a_directory_that_was_killed_in_its_first_moment_is_ours(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "stack.json.new").write_text('{"form')
    open_data(tmp_path, Event()).close()
    assert json.loads((tmp_path / "stack.json").read_text()) == {"format": 1}


def test_what_is_refused_is_not_even_made(tmp_path: Path) -> None:
    (tmp_path / "postgres" / "data").mkdir(parents=True)
    (tmp_path / "stack.json").write_text('{"format": 1}')
    before = fingerprint(tmp_path)
    with pytest.raises(DataRefused, match="is not a Postgres data directory"):
        Stack(["kafka", "postgres"], data=tmp_path).start()
    assert fingerprint(tmp_path) == before


def test_a_directory_in_use(tmp_path: Path) -> None:
    owner = open_data(tmp_path / "data", Event())
    with pytest.raises(DataRefused, match="is in use by another strandline"):
        open_data(tmp_path / "data", Event())
    owner.close()
    open_data(tmp_path / "data", Event()).close()


def test_what_a_killed_stack_left_behind_is_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    left = tmp_path / f"{TEMPORARY_PREFIX}left"
    left.mkdir()
    (left / "lock").touch()
    in_use = open_data(None, Event())
    another = open_data(None, Event())
    assert not left.exists()
    assert in_use.path.exists()
    in_use.close()
    another.close()
    assert not in_use.path.exists()
