"""Compile what a replay does for each request into the environment that runs this. Without a compiler, say so and end.

What is compiled is used only while the sources are the same (`strandline/compiled.py`). None of the modules awaits
anything: a compiled coroutine that is cancelled while it handles an exception leaves that to whoever runs next.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from strandline.compiled import DIRECTORY, MANIFEST, PURE, ROOT, find, hash_of_sources

MODULES = [
    "core.frontier",
    "core.histogram",
    "kafka.producer",
    "kafka.progress",
    "kafka.taking",
    "replay.connection",
    "replay.encoding",
    "replay.engine",
    "replay.guard",
    "replay.intake",
    "replay.leave",
    "replay.outcomes",
    "replay.outgoing",
    "replay.output",
    "replay.retries",
    "replay.session",
    "replay.spool",
    "replay.timeline",
    "replay.tracing",
    "replay.transforms",
    "replay.work",
    "wire.accumulator",
    "wire.captured",
    "wire.gathering",
    "wire.head",
    "wire.http1",
    "wire.identity",
    "wire.resumable",
    "wire.transactions",
]
WITHIN_S = 900
SETTINGS = {"MYPYC_OPT_LEVEL": "2", "MYPYC_DEBUG_LEVEL": "0", PURE: "1"}


def compiled(directory: Path, compiler: str) -> dict[str, Path]:
    """Compile a copy of the sources; the modules with their files, the one that all share among them."""
    shutil.copytree(ROOT, directory / "strandline", ignore=shutil.ignore_patterns("__pycache__"))
    sources = [f"strandline/{name.replace('.', '/')}.py" for name in MODULES]
    command = [sys.executable, "-m", "mypyc", "--ignore-missing-imports", *sources]
    environment = {**os.environ, **SETTINGS, "CC": compiler, "MYPYPATH": "."}
    subprocess.run(
        command, cwd=directory, env=environment, check=True, capture_output=True, text=True, timeout=WITHIN_S
    )
    files = [file for file in directory.rglob("*.so") if "build" not in file.relative_to(directory).parts]
    return {".".join((*file.relative_to(directory).parent.parts, file.name.split(".")[0])): file for file in files}


def main() -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        print("not compiled: there is no C compiler, or no Python.h; all works without, at full speed more slowly")
        return
    if find() is not None:
        return
    print("Compiling what a replay does for each request (a minute or two, once) ...")
    place = Path(sysconfig.get_path("platlib")) / DIRECTORY
    with tempfile.TemporaryDirectory(prefix="strandline-compile-") as made:
        try:
            modules = compiled(Path(made), compiler)
        except subprocess.SubprocessError as error:
            told = error.stdout + error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            print(told[-4000:], file=sys.stderr)
            print("not compiled, for the reason above; all works without, at full speed more slowly", file=sys.stderr)
            return
        (place / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, file in modules.items():
            shutil.copy(file, place / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}")
    lines = [f"{name} {name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in sorted(modules)]
    # Last, and whole: what has no manifest is not used.
    (place / f"{MANIFEST}.new").write_text("\n".join([hash_of_sources(), *lines, ""]), encoding="utf-8")
    (place / f"{MANIFEST}.new").rename(place / MANIFEST)


if __name__ == "__main__":
    main()
