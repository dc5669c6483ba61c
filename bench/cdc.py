"""Changes of Postgres into Kinesis, through `strandline cdc run` as its users run it, on real servers.

How fast rows that are inserted 1,000 a transaction are published into an endpoint that keeps nothing, and what the
decoder does alone; how fast rows that are there before go; how long after its commit a change is accepted, at 100 a
second; and how long nothing is accepted when the leader is killed, or stands still beyond its lease.

`python -m bench.cdc`, with `--quick` for a smoke run.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import boto3
import numpy as np
import psycopg

from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered import progress
from strandline.cdc.assembly import Assembly, Offset
from strandline.cdc.lease import lease_status
from strandline.cdc.replication import Frame, Replication, ReplicationSettings
from strandline.cdc.session import Session
from strandline.cdc.slot import look
from strandline.errors import CannotReplicate
from strandline.stack import Kinesis, Stack
from strandline.stack.postgres import Postgres
from strandline.wire.change import Events
from strandline.wire.event import EventFormat

WITHIN_S = 300.0
TAKE_OVER_S = 15
IN_TRANSACTION = 1_000
TABLE = """
    create table account (id bigint primary key, owner text not null, balance numeric(12, 2) not null,
        opened timestamptz not null, is_open boolean not null, note text)"""
# About 117 bytes a row, as Postgres sends it.
FILL = """
    insert into account select n, 'owner ' || n, n %% 10000 / 100.0, now(), true, repeat('x', 40)
    from generate_series(%s::bigint, %s::bigint) n"""


@dataclass(frozen=True)
class Amounts:
    """How much is done, and for how long."""

    rows: int = 1_000_000
    decoded: int = 200_000
    """Rows for the decoder alone."""
    seconds: float = 20.0
    """At 100 changes a second, for the latency."""
    warm_up: int = 300
    """Changes accepted before the latency counts."""
    settle: int = 200
    """Changes that a new leader publishes before the trial goes on."""
    standby_s: float = 15.0
    """An instance that is started is ready to follow after so long."""
    lease_s: int = 5


QUICK = Amounts(rows=5_000, decoded=5_000, seconds=1.0, warm_up=10, settle=10, standby_s=1.0)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {WITHIN_S:g} s: {what}")
        time.sleep(0.02)


def servers(stack: Stack) -> tuple[Postgres, Kinesis]:
    if stack.postgres is None or stack.kinesis is None:
        raise AssertionError("a stack without Postgres or Kinesis")
    return stack.postgres, stack.kinesis


class Bench:
    """A database with its table, a stream, and instances that publish the one to the other."""

    def __init__(self, stack: Stack, directory: Path, name: str, *, lease_s: int = 5) -> None:
        postgres, self.kinesis = servers(stack)
        self.url = postgres.url.rsplit("/", 1)[0] + f"/{name}"
        self.stream = name
        self._directory = directory
        self._config = directory / f"{name}.yaml"
        self._config.write_text(
            f"postgres: {{dsn: '{self.url}', slot: {name}, create: {{tables: [account]}}}}\n"
            f"kinesis: {{stream: {name}}}\nleadership: {{lease_s: {lease_s}}}\ncheckpoint: {directory / name}\n"
        )
        with psycopg.connect(postgres.url, autocommit=True) as database:
            database.execute(f"create database {name}".encode())
        with psycopg.connect(self.url, autocommit=True) as database:
            database.execute(TABLE.encode())
        client = boto3.client("kinesis", endpoint_url=self.kinesis.endpoint, region_name="us-east-1")
        client.create_stream(StreamName=name, ShardCount=4)

    def accepted(self) -> int:
        return self.kinesis.counts(self.stream).records

    def arrived(self) -> dict[int, float]:
        """When each row was first accepted, in milliseconds of the wall clock, by its id."""
        found: dict[int, float] = {}
        for record in (record for shard in self.kinesis.records(self.stream).values() for record in shard):
            number = json.loads(record.data)["after"]["id"]
            found[number] = min(found.get(number, record.arrived_ms), record.arrived_ms)
        return found

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """One instance more."""
        command = [sys.executable, "-m", "strandline", "cdc", "run", "--config", str(self._config)]
        log = self._directory / f"{self.stream}-{time.time_ns()}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stderr=out, env={**os.environ, **self.kinesis.settings()})
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
            for line in log.read_text().splitlines():
                progress(f"  {line}")

    def wait_for_slot(self) -> None:
        """Only what is written from then on is published."""
        with Session(self.url) as session:
            wait_until(lambda: look(session, self.stream) is not None, "the slot is there")

    def leader(self, session: Session) -> int:
        """The process that leads, or 0."""
        try:
            found = lease_status(session, self.stream)
        except CannotReplicate:
            return 0
        return int(found.lease.holder.rsplit(":", 1)[1]) if found and found.now < found.lease.expires else 0


def tree(root: int) -> list[int]:
    """A process and all that come from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for process in found:
        found += parents.get(process, [])
    return found


def used(root: int) -> tuple[float, float]:
    """Seconds of CPU and megabytes at their peak, of a process and all that come from it."""
    cpu, peak = 0.0, 0.0
    for process in tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        # Its own, and those of children that have ended.
        cpu += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        peak += next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)
    return cpu, peak


def throughput(stack: Stack, directory: Path, rows: int) -> Iterator[Figure]:
    """A backlog, from the first record that is accepted to the last."""
    bench = Bench(stack, directory, "backlog")
    with bench.running() as process:
        bench.wait_for_slot()
        with psycopg.connect(bench.url, autocommit=True) as database:
            database.execute(FILL.encode(), (-1, -1))
            wait_until(lambda: bench.accepted() == 1, "the first change is accepted")
            os.kill(process.pid, 0)
            before = used(process.pid)[0]
            began = time.perf_counter()
            for first in range(0, rows, IN_TRANSACTION):
                database.execute(FILL.encode(), (first, first + IN_TRANSACTION - 1))
            written = time.perf_counter() - began
        wait_until(lambda: bench.accepted() > rows, "all changes are accepted")
        took = time.perf_counter() - began
        cpu, peak = used(process.pid)
    progress(f"{rows:,} rows: written in {written:.1f} s, all accepted after {took:.1f} s")
    yield Figure("cdc.changes_per_s", rows / took, "from the first commit to the last record accepted", floor=30_000)
    yield Figure("cdc.cpu_us_per_change", (cpu - before) / rows * 1e6, "CPU of the instance with Spark, µs a change")
    yield Figure("cdc.peak_mb", peak, "of all its processes together")


def decoding(stack: Stack, rows: int) -> Figure:
    """Frames of the log to events, in this process alone."""
    url = servers(stack)[0].url
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(TABLE.encode())
        database.execute(b"create publication decoded for all tables")
        database.execute(b"select pg_create_logical_replication_slot('decoded', 'pgoutput')")
        for first in range(0, rows, IN_TRANSACTION):
            database.execute(FILL.encode(), (first, first + IN_TRANSACTION - 1))
    settings = ReplicationSettings(dsn=url, slot="decoded", publications=["decoded"])
    frames: list[Frame] = []
    with Replication(settings) as replication:
        replication.start(0)
        while sum(frame[2][:1] == b"C" for frame in frames[-5:]) == 0 or len(frames) < rows:
            frames += replication.take(5.0)
    assembly = Assembly(Events(EventFormat(database="postgres")), Offset(), max_rows=rows + 1, max_bytes=1 << 40)
    began = time.process_time()
    assembly.feed(frames)
    while assembly.batch() is not None:
        pass
    return Figure("cdc.decode_per_s", rows / (time.process_time() - began), "frames to events, one core, by CPU")


def waits(stack: Stack, directory: Path, amounts: Amounts) -> Iterator[Figure]:
    """100 changes a second: how long each waits, and how long none is accepted when the leader goes."""
    bench = Bench(stack, directory, "paced", lease_s=amounts.lease_s)
    committed: dict[int, float] = {}
    numbers = iter(range(10**9))
    with ExitStack() as instances, psycopg.connect(bench.url, autocommit=True) as database:
        session = instances.enter_context(Session(bench.url))
        for _ in range(2):
            instances.enter_context(bench.running())
        bench.wait_for_slot()

        def write(until: Callable[[], bool]) -> None:
            due = time.monotonic()
            while not until():
                due += 0.01
                time.sleep(max(0.0, due - time.monotonic()))
                number = next(numbers)
                database.execute(FILL.encode(), (number, number))
                committed[number] = time.time() * 1e3

        def write_until_accepted(more: int) -> None:
            enough = bench.accepted() + more
            write(lambda: bench.accepted() > enough)

        def lose(leader: int, how: signal.Signals) -> float:
            """Stop the leader; when that was. Returns when the next has published changes that came after it."""
            of_leader = tree(leader)
            at, first = time.time() * 1e3, len(committed)
            for process in [leader] if how is signal.SIGKILL else of_leader:
                os.kill(process, how)
            write(lambda: bench.leader(session) not in {0, leader})
            # A new leader begins with what the last one had not acknowledged: that is no sign of a later change.
            while max(bench.arrived()) < first:
                write_until_accepted(amounts.settle)
            for process in of_leader if how is signal.SIGSTOP else []:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            return at

        write(lambda: bench.accepted() > amounts.warm_up)
        calm, end = len(committed), time.monotonic() + amounts.seconds
        write(lambda: time.monotonic() > end)
        still = len(committed)
        write(lambda: bench.accepted() > still)
        killed = lose(bench.leader(session), signal.SIGKILL)
        instances.enter_context(bench.running())
        waiting, end = len(committed), time.monotonic() + amounts.standby_s
        write(lambda: time.monotonic() > end)
        write(lambda: bench.accepted() > waiting)
        frozen = lose(bench.leader(session), signal.SIGSTOP)
    arrived = bench.arrived()
    late = [arrived[number] - committed[number] for number in range(calm, still)]
    yield Figure("cdc.latency_p50_ms", float(np.percentile(late, 50)), "commit to accepted, 100 changes/s; aim: 500")
    yield Figure("cdc.latency_p99_ms", float(np.percentile(late, 99)), "the same, p99")
    for name, lost in (("kill", killed), ("freeze", frozen)):
        gap = min(at for number, at in arrived.items() if committed[number] > lost) - lost
        what = f"SIG{'KILL' if name == 'kill' else 'STOP'} to the next change accepted; lease of {amounts.lease_s} s"
        yield Figure(f"cdc.failover_{name}_s", gap / 1e3, f"{what}; aim: {amounts.lease_s + TAKE_OVER_S}")


if __name__ == "__main__":
    from bench.cdc_snapshot import snapshot

    amounts, is_quick = parse("bench.cdc", Amounts(), QUICK)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as made:
        with Stack(["postgres", "kinesis"], kinesis_keep_bytes=0) as stack:
            os.environ |= servers(stack)[1].settings()
            figures += throughput(stack, Path(made), amounts.rows)
            figures += snapshot(stack, Path(made), amounts.rows)
            figures.append(decoding(stack, min(amounts.rows, amounts.decoded)))
        with Stack(["postgres", "kinesis"]) as stack:
            os.environ |= servers(stack)[1].settings()
            figures += waits(stack, Path(made), amounts)
    report(f"Changes of Postgres in Kinesis, two cores (load {os.getloadavg()[0]:.1f})", figures, is_quick=is_quick)
