"""The import contracts hold, and each of them can fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        *[
            (f"{layer}/broken.py", f"import {name}", "core and wire are pure")
            for layer in ("core", "wire")
            for name in ("asyncio", "socket", "time", "logging", "pyspark")
        ],
        ("gateway/broken.py", "import strandline.proxy", "No product imports another"),
        ("cdc/broken.py", "import strandline.replay", "No product imports another"),
        ("kafka/broken.py", "import pyspark", "Only spark/ imports pyspark"),
        ("core/broken.py", "import strandline.kafka.progress", "Imports point downward only"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(module: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src" / "strandline" / module).write_text(f'"""Breaks a contract."""\n\n{line}\n')
    result = lint_imports(tmp_path)
    assert result.returncode == 1, result.stdout
    broken = [row for row in result.stdout.splitlines() if row.endswith("BROKEN")]
    assert any(row.startswith(contract) for row in broken)


def test_the_code_as_it_is_keeps_them_all() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout
