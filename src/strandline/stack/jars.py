"""Kafka's jars: fetched once into the user's cache, checked against lists of checksums every time they are used.

`kafka.jars` is what brokers run on; `tools.jars` is what Kafka's own command-line tools need beside it.
"""

import hashlib
import logging
import os
import re
import shutil
import signal
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from xml.sax.saxutils import quoteattr

from strandline.errors import FetchFailed, ServerFailed
from strandline.stack.cache import cache_dir, one_at_a_time
from strandline.stack.java import Java
from strandline.stack.processes import Child
from strandline.stalls import bytes_below

BROKER_LIST = Path(__file__).with_name("kafka.jars")
TOOLS_LIST = Path(__file__).with_name("tools.jars")
FETCH_SILENCE_S = 300.0
TELL_EVERY = 10
NEEDS_NETWORK = "the first run needs the network, later ones do not"
UNRESOLVED = re.compile(r"(?:module not found:|\[(?:FAILED|NOT FOUND) *\]) ([\w.-]+)#([\w.-]+);([\w.-]+)")
OFFLINE = re.compile(
    r"Host \S+ not found|Connection refused|timed out|unreachable|No route to host|Server access error"
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of a list."""

    organisation: str
    module: str
    revision: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.revision}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


@cache
def pinned(file: Path = BROKER_LIST) -> tuple[Jar, ...]:
    """All jars of a list, that of the embedded Kafka if none is named."""
    lines = file.read_text().splitlines()
    return tuple(Jar(*line.split()) for line in lines if line and not line.startswith("#"))


@cache
def kafka_version() -> str:
    """The version of the embedded Kafka."""
    return next(jar.revision for jar in pinned() if jar.module == "kafka_2.13")


def kafka_jars(java: Java, cancelled: Event) -> list[Path]:
    """The class path of the embedded Kafka, whole and unaltered; fetched when it is missing or damaged."""
    return _jars("kafka", pinned(), java, cancelled)


def tools_jars(java: Java, cancelled: Event) -> list[Path]:
    """The class path of Kafka's command-line tools."""
    return kafka_jars(java, cancelled) + _jars("kafka-tools", pinned(TOOLS_LIST), java, cancelled)


def _jars(name: str, wanted: tuple[Jar, ...], java: Java, cancelled: Event) -> list[Path]:
    directory = cache_dir() / f"{name}-{kafka_version()}"
    paths = [directory / jar.file_name for jar in wanted]
    if _faulty(directory, wanted) is None:
        return paths
    with one_at_a_time(f"{name}-jars", cancelled):
        fault = _faulty(directory, wanted)  # another process may have fetched them while we waited
        if fault is None:
            return paths
        if directory.exists():
            log.warning("kafka: %s is missing or damaged; fetching all jars again", directory / fault.file_name)
        _fetch(directory, wanted, java, cancelled)
    return paths


def _faulty(directory: Path, wanted: tuple[Jar, ...]) -> Jar | None:
    return next((jar for jar in wanted if not _is_sound(directory / jar.file_name, jar)), None)


def _is_sound(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except OSError:
        return False


def _fetch(directory: Path, wanted: tuple[Jar, ...], java: Java, cancelled: Event) -> None:
    """Fetch into a directory beside the final one, check, and swap: a fetch that is cut short leaves nothing in use."""
    log.info("kafka: fetching %d jars of Kafka %s (once)", len(wanted), kafka_version())
    for leftover in directory.parent.glob(f"fetching-{directory.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"fetching-{directory.name}-", dir=directory.parent))
    try:
        _run_ivy(work, wanted, java, cancelled)
        fault = _faulty(work / "jars", wanted)
        if fault is not None:
            path = work / "jars" / fault.file_name
            raise FetchFailed(
                fault.coordinates, "it differs from its checksum" if path.exists() else "it did not arrive"
            )
        shutil.rmtree(directory, ignore_errors=True)
        (work / "jars").rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(work: Path, wanted: tuple[Jar, ...], java: Java, cancelled: Event) -> None:
    settings = work / "ivy.xml"
    settings.write_text(_module_descriptor(wanted))
    ivy = Child(
        name="ivy",
        command=[
            java.executable, "-jar", _ivy_jar(), "-ivy", settings, "-cache", work / "cache",
            "-retrieve", work / "jars" / "[artifact]-[revision].[ext]",
        ],
        log=work / "ivy.log",
        cwd=work,
        env={**os.environ},
    )  # fmt: skip
    ivy.start()
    arrived = 0

    def has_ended() -> bool:
        nonlocal arrived
        for line in lines:
            if "[SUCCESSFUL ]" in line:
                arrived += 1
                if arrived % TELL_EVERY == 0:
                    log.info("kafka: %d of %d jars", arrived, len(wanted))
        return ivy.exit_code is not None

    try:
        with ivy.log.open(errors="replace") as lines:
            ivy.wait_until(has_ended, FETCH_SILENCE_S, cancelled, lambda: bytes_below(work))
    except ServerFailed as error:
        ivy.stop(signal.SIGKILL, silence_s=0)
        raise FetchFailed("Kafka's jars", f"nothing arrived for {FETCH_SILENCE_S:g} s; {NEEDS_NETWORK}") from error
    if ivy.exit_code != 0:
        raise _why_it_failed(ivy.log.read_text(errors="replace"))


def _why_it_failed(log: str) -> FetchFailed:
    missing = [":".join(match.groups()) for match in UNRESOLVED.finditer(log)]
    package = f"Kafka {kafka_version()}" if not missing else missing[0]
    more = len(set(missing)) - 1
    reason = "no package server answers" if OFFLINE.search(log) else "it is not there"
    others = f" (nor {more} more)" if more > 0 else ""
    return FetchFailed(f"{package}{others}", f"{reason}; {NEEDS_NETWORK}")


def _module_descriptor(wanted: tuple[Jar, ...]) -> str:
    """Exactly the pinned jars and nothing that they would drag in."""
    rows = [
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} rev={quoteattr(jar.revision)} "
        f'transitive="false" conf="default"><artifact name={quoteattr(jar.module)} type="jar" ext="jar"/></dependency>'
        for jar in wanted
    ]
    return "\n".join([
        '<ivy-module version="2.0"><info organisation="strandline" module="kafka"/>',
        '<configurations><conf name="default"/></configurations><dependencies>',
        *rows,
        "</dependencies></ivy-module>",
    ])  # fmt: skip


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not jars:
        raise FetchFailed("Kafka's jars", "PySpark's copy of Ivy is missing; reinstall pyspark")
    return jars[-1]
