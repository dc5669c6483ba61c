"""Captured traffic replayed from a real Kafka onto a target in a process of its own, with results on.

Fidelity: how late requests arrive, by the target's own notes against times that were fixed before the replay began,
beside a bare loop that does nothing but send at those times.
Throughput: as fast as the target answers, beside `wrk` on the same target where wrk is there. Memory: the same over a
capture ten times as long; the short one is long enough to fill what is read ahead, else it would measure nothing.
Capture: what it adds to a request, as `bench.capture` has it.

`python -m bench.replay`, with `--quick` for a smoke run.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from tests.topics import create_topics

from bench import capture
from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered import progress
from strandline.compiled import is_used
from strandline.kafka.librdkafka import SAFE
from strandline.stack import Stack
from strandline.units import Nanos
from strandline.wire.traffic import Recording

PARTITIONS = 4
CONNECTIONS = 64
SOURCE = 1_780_000_000_000_000_000
VS_BARE = 0.14
"""The floor of the share that a compiled replay has of the rate of a bare loop in the same run."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Amounts:
    """How much is replayed, for how long and how often."""

    seconds: float = 20.0
    """At each rate, for the lateness."""
    rounds: int = 3
    requests: int = 1_000_000
    """As fast as the target answers."""
    head_start_s: float = 6.0
    """From the start of a replay to the time at which its first request is due."""
    capture_s: float = capture.Amounts().seconds
    wrk_s: int = 5
    only: str = field(default="all", metadata={"choices": ["all", "fidelity", "throughput", "capture"]})


QUICK = Amounts(seconds=0.5, rounds=1, requests=5_000, head_start_s=2.0, capture_s=capture.QUICK.seconds, wrk_s=1)


@dataclass(frozen=True)
class Notes:
    """What the target noted: connection, number of the request, time on the wall."""

    connection: np.ndarray
    number: np.ndarray
    at: np.ndarray


def request(number: int) -> bytes:
    return b"GET /items/%d HTTP/1.1\r\nHost: source.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n" % number


def times(rate: float, seconds: float, *, poisson: bool) -> np.ndarray:
    """When requests were made at the source, in nanoseconds from the beginning."""
    count = int(rate * seconds)
    gaps = np.random.default_rng(1).exponential(1 / rate, count) if poisson else np.full(count, 1 / rate)
    return (np.cumsum(gaps) * 1e9).astype(np.int64)


def fill(address: str, topic: str, due: Sequence[int]) -> None:
    """Capture requests of many connections, in turn, and close all of them at the end."""
    create_topics({"bootstrap.servers": address}, NewTopic(topic, PARTITIONS, config={"retention.ms": "-1"}))
    # One request at a time: one that is repeated on a topic just made would else come behind the next.
    settings = {"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings, **SAFE})
    names = [f"connection-{number}" for number in range(CONNECTIONS)]
    recordings = [Recording("bench", name) for name in names]

    def put(which: int, records: list[bytes]) -> None:
        for record in records:
            while True:
                try:
                    producer.produce(topic, record, names[which])
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)

    for number, at in enumerate(due):
        which = number % CONNECTIONS
        recording = recordings[which]
        seen = Nanos(SOURCE + int(at))
        recording.read(seen, request(number))
        recording.end_of_request(seen)
        recording.write(Nanos(seen + 500_000), ANSWER)
        put(which, recording.take())
    for which, recording in enumerate(recordings):
        recording.close(Nanos(SOURCE + int(due[-1]) + 10**9))
        put(which, recording.take(last=True))
    if producer.flush(60):
        raise AssertionError("the capture could not be written")


@contextmanager
def target(directory: Path) -> Iterator[tuple[int, Path, "subprocess.Popen[bytes]"]]:
    """A target: its port, the file of its notes, its process."""
    number = len(list(directory.iterdir()))
    port, log = directory / f"port{number}", directory / f"log{number}"
    process = subprocess.Popen([sys.executable, "-m", "bench.replay_target", str(port), str(log)])
    try:
        deadline = time.monotonic() + 20
        while not (port.exists() and port.read_text()):
            if time.monotonic() > deadline:
                raise AssertionError("the target does not come up")
            time.sleep(0.02)
        yield int(port.read_text()), log, process
    finally:
        process.terminate()
        process.wait(30)


def notes(log: Path) -> Notes:
    table = np.fromfile(log, dtype=np.int64).reshape(-1, 3)
    return Notes(*table.T)


@dataclass(frozen=True)
class Used:
    """What a process used."""

    cpu_s: float
    peak_mb: float


def replay(address: str, topic: str, port: int, *options: str) -> Used:
    """Run the command to its end."""
    command = [str(Path(sys.executable).with_name("strandline"))]
    arguments = ["replay", "--target", f"http://127.0.0.1:{port}", "--topic", topic, "--until", "live"]
    arguments += ["--kafka", address, "--group", f"{topic}-{time.time_ns()}", *options]
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen([*command, *arguments], stderr=told)
        _, status, used = os.wait4(process.pid, 0)
        told.seek(0)
        for line in told.read().decode().splitlines():
            progress(f"  {line}")
        if status:
            raise AssertionError(f"the replay ended with {status}")
    return Used(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def iso(nanos: int) -> str:
    return datetime.fromtimestamp(nanos / 1e9, UTC).isoformat()


@dataclass(frozen=True)
class Fidelity:
    p50_ms: float
    p99_ms: float
    drift_ms: float
    violations: int


def judge(log: Path, due: np.ndarray, wall: int, what: str) -> Fidelity:
    """How late requests came by the target's notes, against times that were fixed before."""
    came = notes(log)
    if len(came.at) != len(due) or set(came.number.tolist()) != set(range(len(due))):
        raise AssertionError(f"{len(came.at)} requests of {len(due)} arrived")
    late = (came.at - (wall + due[came.number])) / 1e6
    order = np.argsort(came.number)
    tenth = max(1, len(due) // 10)
    first, last = late[order][:tenth], late[order][-tenth:]
    violations = sum(
        int((np.diff(came.number[came.connection == connection]) < 0).sum()) for connection in set(came.connection)
    )
    result = Fidelity(
        float(np.percentile(late, 50)),
        float(np.percentile(late, 99)),
        float(np.median(last) - np.median(first)),
        violations,
    )
    progress(
        f"{what}: late p50 {result.p50_ms:.2f} ms, p99 {result.p99_ms:.2f} ms, least {late.min():.2f} ms, "
        f"drift {result.drift_ms:.2f} ms, out of order {violations}"
    )
    return result


def beginning(head_start_s: float) -> int:
    """When the first request is due, on the wall."""
    return (time.time_ns() // 1000) * 1000 + int(head_start_s * 1e9)


def replayed(address: str, directory: Path, topic: str, due: np.ndarray, what: str, *, head_start_s: float) -> Fidelity:
    """How late the requests of a topic come when they are replayed."""
    with target(directory) as (port, log, _):
        wall = beginning(head_start_s)
        replay(address, topic, port, "--start-at", f"{iso(SOURCE)}@{iso(wall)}")
    return judge(log, due, wall, what)


def bare(directory: Path, due: np.ndarray, what: str, *, head_start_s: float) -> Fidelity:
    """How late the same requests come from a loop that does nothing else."""
    file = directory / "due"
    due.tofile(file)
    with target(directory) as (port, log, _):
        wall = beginning(head_start_s)
        subprocess.run([sys.executable, "-m", "bench.replay_bare", str(port), str(file), str(wall)], check=True)
    return judge(log, due, wall, what)


def fidelity(address: str, directory: Path, amounts: Amounts) -> Iterator[Figure]:
    """Each rate several times in turns.

    Lateness is that of the best round of each rate: a stall of the machine is not the replay's. Drift and order are
    the worst of all rounds.
    """
    head_start_s = amounts.head_start_s
    rates = list(itertools.product((200.0, 2000.0), (False, True)))
    names = {rate: f"{rate[0]:g}_{'poisson' if rate[1] else 'fixed'}" for rate in rates}
    dues = {rate: times(rate[0], amounts.seconds, poisson=rate[1]) for rate in rates}
    for rate in rates:
        fill(address, f"fidelity-{names[rate]}", dues[rate].tolist())
    runs: dict[str, list[Fidelity]] = {name: [] for name in [*names.values(), "bare"]}
    for turn in range(1, amounts.rounds + 1):
        for rate, name in names.items():
            what = f"round {turn}: {name.replace('_', '/s ')}"
            topic = f"fidelity-{name}"
            runs[name].append(replayed(address, directory, topic, dues[rate], what, head_start_s=head_start_s))
        what = f"round {turn}: a bare loop, 2000/s poisson"
        runs["bare"].append(bare(directory, dues[2000.0, True], what, head_start_s=head_start_s))
    best = {name: min(found, key=lambda run: run.p99_ms) for name, found in runs.items()}
    for name in names.values():
        what = name.replace("_", "/s, ")
        yield Figure(f"replay.late_p50_ms_{name}", best[name].p50_ms, f"late by, median, {what}", ceiling=1)
        yield Figure(f"replay.late_p99_ms_{name}", best[name].p99_ms, f"the same, p99, {what}", ceiling=5)
    main, limit = best["2000_poisson"], best["bare"]
    replays = [run for name in names.values() for run in runs[name]]
    drift = max((run.drift_ms for run in replays), key=abs)
    yield Figure("replay.bare_p50_ms", limit.p50_ms, "the limit here: a loop that only sends, 2,000/s Poisson")
    yield Figure("replay.bare_p99_ms", limit.p99_ms, "the same, p99")
    yield Figure("replay.late_p50_ms", main.p50_ms, "late by, median, 2,000/s Poisson", ceiling=1)
    yield Figure("replay.late_p99_ms", main.p99_ms, "the same, p99", ceiling=5)
    yield Figure("replay.drift_ms", drift, "last tenth against first, the worst of all rounds", floor=-1, ceiling=1)
    violations = sum(run.violations for run in replays)
    what = "requests before an earlier one, in all rounds"
    yield Figure("replay.order_violations", violations, what, ceiling=0, is_exact=True)


@dataclass(frozen=True)
class Speed:
    rps: float
    cpu_us: float
    peak_mb: float


def throughput(address: str, directory: Path, requests: int) -> Speed:
    """As fast as the target answers."""
    topic = f"throughput-{requests}"
    fill(address, topic, list(range(0, requests * 1000, 1000)))
    with target(directory) as (port, log, _):
        used = replay(address, topic, port, "--speedup", "max")
    came = notes(log)
    if len(came.at) != requests:
        raise AssertionError(f"{len(came.at)} requests of {requests} arrived")
    speed = Speed(requests / ((came.at.max() - came.at.min()) / 1e9), used.cpu_s / requests * 1e6, used.peak_mb)
    progress(f"{requests:,} requests: {speed.rps:,.0f}/s, {speed.cpu_us:.0f} µs CPU each, peak {speed.peak_mb:.0f} MB")
    return speed


def bare_speed(directory: Path, requests: int) -> float:
    """What a loop gets out of the same target that does nothing but send when something has come."""
    with target(directory) as (port, _, _):
        argv = [sys.executable, "-m", "bench.replay_bare", str(port), str(requests)]
        rate = float(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    progress(f"a bare loop: {rate:,.0f}/s")
    return rate


def wrk(directory: Path, seconds: int) -> float | None:
    """What wrk gets out of the same target."""
    command = shutil.which("wrk")
    if command is None:
        progress("wrk is not there: no ratio to it")
        return None
    with target(directory) as (port, _, _):
        url = f"http://127.0.0.1:{port}/items/1"
        told = subprocess.run(
            [command, "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", url], capture_output=True, text=True, check=True
        ).stdout
    rate = next(float(line.split()[1]) for line in told.splitlines() if line.startswith("Requests/sec"))
    progress(f"wrk: {rate:,.0f}/s")
    return rate


if __name__ == "__main__":
    chosen, is_quick = parse("bench.replay", Amounts(), QUICK)
    figures: list[Figure] = []
    with Stack(["kafka"]) as stack, tempfile.TemporaryDirectory(prefix="strandline-bench-") as made:
        address, directory = stack.kafka[0].address, Path(made)
        if chosen.only in {"all", "fidelity"}:
            figures += fidelity(address, directory, chosen)
        if chosen.only in {"all", "throughput"}:
            peer = wrk(directory, chosen.wrk_s)
            limit = bare_speed(directory, chosen.requests)
            small = throughput(address, directory, chosen.requests // 10)
            large = throughput(address, directory, chosen.requests)
            figures += [
                Figure("replay.max_rps", large.rps, "requests/s as fast as the target answers; aim: 12,000"),
                Figure("replay.bare_rps", limit, "the limit here: a loop that only sends and is answered"),
                Figure(
                    "replay.vs_bare",
                    large.rps / limit,
                    "times the bare loop's requests/s; floor where compiled",
                    floor=VS_BARE if is_used() else None,
                ),
                Figure("replay.cpu_us", large.cpu_us, "CPU of the replay for each request, µs"),
                Figure(
                    "replay.memory_growth",
                    large.peak_mb / small.peak_mb,
                    "peak memory, ten times as long",
                    ceiling=1.25,
                ),
            ]
            if peer is not None:
                figures.append(Figure("replay.vs_wrk", large.rps / peer, "times wrk's requests/s"))
        if chosen.only in {"all", "capture"}:
            figures += capture.measured(address, capture.Amounts(chosen.capture_s, chosen.rounds))
    load = os.getloadavg()[0]
    form = "compiled" if is_used() else "not compiled"
    report(
        f"Replay, {form}, onto a target on the same two cores, and capture (load {load:.1f})",
        figures,
        is_quick=is_quick,
    )
