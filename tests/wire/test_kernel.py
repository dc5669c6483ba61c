"""Who may write neither to the package nor to a cache of his own has compiled functions all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
from strandline.wire.kernel import kernel

@kernel("int64(int64)")
def twice(value):
    return 2 * value

print(twice(21))
"""
# Numba looks in the one place that it was told, and was told none: as for a service's user, also where tests are root.
NOWHERE = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": ""}


def run(directory: Path) -> None:
    program = directory / "program.py"
    program.write_text(KERNEL)
    env = {**os.environ, **NOWHERE, "TMPDIR": str(directory)}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_without_a_place_of_numbas_it_is_kept_in_a_private_one(tmp_path: Path) -> None:
    run(tmp_path)
    place = tmp_path / f"strandline-kernels-{os.getuid()}"
    assert place.stat().st_mode & 0o777 == 0o700
    assert list(place.rglob("program.twice-*.nbc"))


@pytest.mark.parametrize("kind", ["open to others", "elsewhere"])
def test_what_others_could_have_written_is_not_run(tmp_path: Path, kind: str) -> None:
    place, other = tmp_path / f"strandline-kernels-{os.getuid()}", tmp_path / "other"
    other.mkdir(mode=0o700)
    if kind == "elsewhere":
        place.symlink_to(other)
    else:
        place.mkdir()
        place.chmod(0o777)
    run(tmp_path)
    assert not list(place.iterdir())
