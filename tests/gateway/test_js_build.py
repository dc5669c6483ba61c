"""The browser's client is what its source says: built from it, and from no other."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "clients" / "js"


def test_what_is_shipped_was_built_from_the_source_as_it_is() -> None:
    noted = json.loads((HERE / "built.json").read_text())
    found = {file: hashlib.sha256((HERE / file).read_bytes()).hexdigest() for file in noted}
    assert found == noted, "run `npm run build` in clients/js"
    assert set(noted) >= {"src/gateway.ts", "lib/gateway.js", "lib/gateway.d.ts"}


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("tsc") is None, reason="no TypeScript compiler here")
def test_the_compiler_makes_the_same_of_it(tmp_path: Path) -> None:
    subprocess.run(["tsc", "--project", str(HERE), "--outDir", str(tmp_path)], check=True)
    for name in ("gateway.js", "gateway.d.ts"):
        assert (tmp_path / name).read_text() == (HERE / "lib" / name).read_text()
