"""Java is found, or brought along: a system's that is too old or broken is passed over."""

from pathlib import Path

import pytest

from strandline.errors import JavaMissing
from strandline.stack.java import Java, find_java


def fake_java(home: Path, banner: str, code: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def found() -> Java:
    return find_java.__wrapped__()


def test_the_java_of_java_home_is_taken_first(no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = fake_java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", 'openjdk version "17.0.1"').parent))
    assert (found().executable, found().home) == (executable, tmp_path / "home")


@pytest.mark.parametrize(
    "banner", ['java version "1.8.0_402"', 'openjdk version "11.0.22" 2024-01-16', "Segmentation fault", ""]
)
def test_a_java_that_is_too_old_or_broken_gives_way_to_the_one_that_we_bring(
    banner: str, no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", banner, code=1).parent))
    assert found().bundled
    assert 'version "21' in found().banner


def test_a_java_home_that_holds_nothing_is_passed_over(no_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert found().bundled


def test_with_no_java_at_all_the_error_says_what_to_do(
    no_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", 'java version "1.8.0_402"').parent))
    monkeypatch.setattr("strandline.stack.java._bundled", lambda: None)
    with pytest.raises(JavaMissing, match=r"no Java 17 or newer \(.*is Java 8\): install one, or pip install"):
        found()
