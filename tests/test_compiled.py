"""Compiled modules run only in the place of the sources that they were made of."""

import ast
import os
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from strandline import compiled

TOOL = Path(__file__).parent.parent / "tools" / "compile.py"


@pytest.mark.skipif(
    not os.environ.get("CI") or bool(os.environ.get(compiled.PURE)), reason="an edited checkout runs its sources"
)
def test_continuous_integration_tests_the_compiled_modules() -> None:
    assert compiled.is_used()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sources for which modules are said to be compiled."""
    copy = tmp_path / "strandline"
    for package in compiled.WATCHED:
        shutil.copytree(Path(compiled.ROOT) / package, copy / package, ignore=no_packages, dirs_exist_ok=True)
    place = tmp_path / "site-packages" / compiled.DIRECTORY
    place.mkdir(parents=True)
    lines = [compiled.hash_of_sources(str(copy)), "strandline.wire.http1 http1.so"]
    (place / compiled.MANIFEST).write_text("\n".join(lines))
    monkeypatch.setattr(sys, "path", [str(place.parent)])
    monkeypatch.delenv(compiled.PURE, raising=False)
    return copy


def no_packages(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(directory) / name).is_dir()]


def test_modules_are_found_where_they_were_compiled_to(sources: Path) -> None:
    finder = compiled.find(str(sources))
    assert finder is not None
    assert finder.find_spec("strandline.wire.head") is None
    place = str(sources.parent / "site-packages" / compiled.DIRECTORY / "http1.so")
    found = finder.find_spec("strandline.wire.http1")
    assert found is not None
    assert (found.name, found.origin) == ("strandline.wire.http1", place)


@pytest.mark.parametrize("name", ["wire/http1.py", "replay/work.py", "errors.py", "core/new.py"])
def test_once_any_source_is_another_all_of_them_run_as_they_are(sources: Path, name: str) -> None:
    with (sources / name).open("a") as file:
        file.write("\n")
    assert compiled.find(str(sources)) is None


def test_a_manifest_that_cannot_be_read_counts_as_none(sources: Path) -> None:
    (sources.parent / "site-packages" / compiled.DIRECTORY / compiled.MANIFEST).write_bytes(b"")
    assert compiled.find(str(sources)) is None


def test_who_wants_the_sources_gets_them(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.PURE, "1")
    assert compiled.find(str(sources)) is None


@pytest.mark.parametrize("name", runpy.run_path(str(TOOL))["MODULES"])
def test_what_is_compiled_is_watched_awaits_nothing_and_freezes_nothing(name: str) -> None:
    assert name.split(".", maxsplit=1)[0] in compiled.WATCHED
    source = Path(compiled.ROOT, *name.split(".")).with_suffix(".py").read_text()
    nodes = list(ast.walk(ast.parse(source)))
    # A compiled coroutine that is cancelled while it handles an exception leaves that to whoever runs next.
    assert not any(isinstance(node, ast.AsyncFunctionDef) for node in nodes)
    # A frozen dataclass that is compiled can be pickled, and not be read again.
    assert not any(isinstance(node, ast.keyword) and node.arg == "frozen" for node in nodes)
