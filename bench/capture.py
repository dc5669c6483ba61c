"""What the capture adds to a request, and how many it lets through, against the same service without it.

The service answers from memory and does nothing else, so that what is measured is the proxy; each of service, proxy,
broker and load is a process of its own, on the same machine. Latency is that of one connection at a time, throughput
that of 32; of several rounds the best counts, for each figure. Load by `wrk` where it is there.

`python -m bench.capture`, with `--quick` for a smoke run.
"""

import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.amounts import parse
from bench.capture_peers import BODY
from bench.figures import Figure, report
from strandline.stack import Stack
from strandline.stack.ports import free_port

CONNECTIONS = 32
PERCENTILE = re.compile(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)$", re.MULTILINE)
PER_SECOND = re.compile(r"^Requests/sec:\s+([\d.]+)$", re.MULTILINE)
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True, slots=True)
class Load:
    """What came of one load."""

    per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Amounts:
    """How long each load lasts, and how often each is repeated."""

    seconds: float = 3.0
    rounds: int = 5


QUICK = Amounts(seconds=0.3, rounds=1)
WARM_UP_S = 1.0


@contextmanager
def process(*command: str) -> Iterator[str]:
    """A process that is gone afterwards; the first line that it says."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield child.stdout.readline() if child.stdout is not None else ""
    finally:
        child.terminate()
        child.communicate(timeout=30)


@contextmanager
def capture(kafka: str, upstream: int, reliable: str) -> Iterator[int]:
    """The proxy in front of the upstream; its port."""
    port = free_port()
    command = (sys.executable, "-m", "strandline", "capture", "--listen", f"127.0.0.1:{port}", "--kafka", kafka)
    with process(*command, "--to", f"http://127.0.0.1:{upstream}", "--reliable", reliable):
        yield port


def load(port: int, method: str, connections: int, seconds: float) -> Load:
    """Ask as fast as answers come."""
    if shutil.which("wrk") is None:
        arguments = map(str, (port, method, connections, seconds))
        command = [sys.executable, "-m", "bench.capture_peers", "load", *arguments]
        return Load(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(f"wrk.method = '{method}'\n")
        if method == "POST":
            script.write(f"wrk.body = '{BODY.decode()}'\n")
        script.flush()
        where = ("-s", script.name, f"http://127.0.0.1:{port}/gauges")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{math.ceil(seconds)}s", "--latency", *where]
        told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rate = PER_SECOND.search(told)
    parts = {part: float(value) * MILLISECONDS[unit] for part, value, unit in PERCENTILE.findall(told)}
    if rate is None or "Non-2xx" in told or "Socket errors" in told:
        raise AssertionError(f"not every request was answered:\n{told}")
    return Load(float(rate[1]), parts["50"], parts["99"])


def measure(port: int, method: str, seconds: float) -> tuple[Load, Load]:
    """One connection, then many; the first moments do not count."""
    load(port, method, CONNECTIONS, min(seconds, WARM_UP_S))
    return load(port, method, 1, seconds), load(port, method, CONNECTIONS, seconds)


def best(loads: list[Load]) -> Load:
    """Each figure by itself: what else runs on the machine only ever makes it worse."""
    return Load(
        max(load.per_s for load in loads), min(load.p50_ms for load in loads), min(load.p99_ms for load in loads)
    )


def figures(name: str, what: str, direct: tuple[Load, Load], through: tuple[Load, Load]) -> Iterator[Figure]:
    """What the proxy adds."""
    yield Figure(f"{name}added_p50_ms", through[0].p50_ms - direct[0].p50_ms, f"{what}: added to the median")
    yield Figure(f"{name}added_p99_ms", through[0].p99_ms - direct[0].p99_ms, f"{what}: added to the 99th of 100")
    yield Figure(f"{name}requests_per_s", through[1].per_s, f"{what}: with {CONNECTIONS} connections")
    yield Figure(f"{name}vs_direct", through[1].per_s / direct[1].per_s, f"{what}: of what goes without the proxy")


def measured(kafka: str, amounts: Amounts) -> list[Figure]:
    """All that is told of the capture; `bench.replay` has it too."""
    found: dict[str, list[tuple[Load, Load]]] = {}
    with ExitStack() as around:
        upstream = int(around.enter_context(process(sys.executable, "-m", "bench.capture_peers", "upstream")))
        proxies = {mode: around.enter_context(capture(kafka, upstream, mode)) for mode in ("none", "mutating")}
        cases = {
            "direct GET": (upstream, "GET"),
            "direct POST": (upstream, "POST"),
            "GET": (proxies["mutating"], "GET"),
            "unheld POST": (proxies["none"], "POST"),
            "held POST": (proxies["mutating"], "POST"),
        }
        for number in range(amounts.rounds):
            for name, (port, method) in cases.items():
                one, many = measure(port, method, amounts.seconds)
                found.setdefault(name, []).append((one, many))
                print(
                    f"round {number + 1}: {name}: {one.p50_ms:.3f} ms at p50, {one.p99_ms:.3f} ms at p99,"
                    f" {many.per_s:,.0f} requests a second",
                    file=sys.stderr,
                )
    bests = {
        name: (best([one for one, _ in loads]), best([many for _, many in loads])) for name, loads in found.items()
    }
    return [
        *figures("capture.", "GET, --reliable mutating", bests["direct GET"], bests["GET"]),
        *figures("capture.none_", "POST, --reliable none", bests["direct POST"], bests["unheld POST"]),
        *figures("capture.held_", "POST, held until Kafka has it", bests["direct POST"], bests["held POST"]),
    ]


def main() -> None:
    amounts, is_quick = parse("bench.capture", Amounts(), QUICK)
    with Stack(["kafka"]) as stack:
        found = measured(stack.kafka[0].address, amounts)
    report("capture: what it adds to a request, against the same service without it", found, is_quick=is_quick)


if __name__ == "__main__":
    main()
