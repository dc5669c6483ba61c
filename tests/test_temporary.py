"""What a killed process left is removed by the next of its kind, and what is in use is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from strandline.temporary import Temporary

KILLED = """
import os, signal
from strandline.temporary import Temporary
kept = Temporary("trial")
(kept.path / "spark.log").touch()
print(kept.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Temporary("trial") as ours, Temporary("other") as other:
        left = subprocess.run([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, check=False)
        killed = Path(left.stdout.strip())
        assert (killed / "spark.log").exists()
        with Temporary("trial") as following:
            assert set(tmp_path.iterdir()) == {ours.path, other.path, following.path}
    assert not list(tmp_path.iterdir())


def test_one_that_is_let_go_of_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert Temporary("trial").path.parent == tmp_path
    assert not list(tmp_path.iterdir())
