"""`make proxy-matrix`: which APIs, in which versions, each client used in its own tests. Writes `docs/proxy-matrix.md`.

Each client has a proxy of its own, and its cells are what that proxy counted.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import confluent_kafka

from strandline.proxy.rules.table import RULES
from strandline.stack.jars import kafka_version
from tests.proxy.support import COUNTS_FILE
from tests.proxy.test_kcat import KCAT

TESTS = Path(__file__).parent
PAGE = TESTS.parents[1] / "docs" / "proxy-matrix.md"
HEAD = """\
# Clients through the proxy: what was exercised

Made by `make proxy-matrix`: the tests of each client in `tests/proxy/` run against a proxy of their own, in front of
two clusters of Kafka {kafka}, and a cell shows the versions of an API that the proxy counted in that run. What the
proxy offers and nobody used prints as untested. A client takes the highest version that both sides know, so most cells
hold one; APIs that need a second broker or a sign-in are tried in other tests, with other proxies.

{clients}
"""
NOT_OFFERED = """
## Not offered

Clients are not told of these, and are turned away when they use them all the same.

| API | why |
|---|---|
"""

Versions = Mapping[str, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Client:
    """A column."""

    name: str
    release: str
    tests: str


@dataclass(frozen=True, slots=True)
class Run:
    """What a proxy offered and counted."""

    offered: Mapping[str, tuple[int, int]]
    used: Versions


def clients() -> Iterable[Client]:
    """Those that are installed here."""
    librdkafka = confluent_kafka.libversion()[0]
    yield Client("confluent-kafka", f"{version('confluent-kafka')} (librdkafka {librdkafka})", "test_librdkafka.py")
    yield Client("kafka-python", version("kafka-python"), "test_kafka_python.py")
    yield Client("aiokafka", version("aiokafka"), "test_aiokafka.py")
    yield Client("Java", f"{kafka_version()} (Kafka's own tools)", "test_java.py")
    if KCAT is not None:
        shown = subprocess.run([KCAT, "-V"], capture_output=True, text=True, timeout=60, check=True).stdout
        release = next(line for line in shown.splitlines() if line.startswith("Version"))
        yield Client(
            "kcat",
            release.split()[1] + " (librdkafka " + release.split("librdkafka ")[1].split()[0] + ")",
            "test_kcat.py",
        )


def run(client: Client, directory: Path) -> Run:
    """Run a client's tests, all of them."""
    file = directory / f"{client.name}.json"
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "soak or not soak", str(TESTS / client.tests)]
    subprocess.run(tests, env={**os.environ, COUNTS_FILE: str(file)}, check=True, timeout=1800)
    kept = json.loads(file.read_text())
    used: dict[str, set[int]] = defaultdict(set)
    for _, api, number, _ in kept["requests"]:
        used[api].add(number)
    offered = {api: (low, high) for api, low, high in kept["offered"]}
    return Run(offered, {api: frozenset(numbers) for api, numbers in used.items()})


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: 0, 4-7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else f"{one[0]}" for one in found)


def page(runs: Mapping[Client, Run]) -> str:
    """The whole page."""
    offered = next(iter(runs.values())).offered
    named = "\n".join(f"- {client.name} {client.release}: `tests/proxy/{client.tests}`" for client in runs)
    columns = ["API", "offered", *(client.name for client in runs), "untested versions"]
    rows = [columns, ["---"] * len(columns)]
    for rule in RULES.values():
        if rule.name not in offered:
            continue
        low, high = offered[rule.name]
        used = [run.used.get(rule.name, frozenset[int]()) for run in runs.values()]
        left = frozenset(range(low, high + 1)).difference(*used)
        cells = [ranges(numbers) or "untested" for numbers in used]
        rows.append([rule.name, ranges(range(low, high + 1)), *cells, ranges(left) or "none"])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    refused = [f"| {rule.name} | {rule.text} |" for rule in RULES.values() if rule.name not in offered]
    table = "\n".join(lines)
    return (
        HEAD.format(kafka=kafka_version(), clients=named)
        + "\n"
        + table
        + "\n"
        + NOT_OFFERED
        + "\n".join(refused)
        + "\n"
    )


def main() -> None:
    """All clients, one after the other."""
    directory = Path(tempfile.mkdtemp(prefix="proxy-matrix-"))
    try:
        PAGE.write_text(page({client: run(client, directory) for client in clients()}))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
