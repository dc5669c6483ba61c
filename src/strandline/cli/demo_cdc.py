"""`strandline demo cdc`: changes of a bank's accounts in a stream; the leader is killed, and nothing is lost.

What it does is what a user would do: two instances of `strandline cdc run`, of which one leads.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import Session as AwsSession
from rich.console import Console
from rich.table import Table

from strandline.cdc.lease import lease_status
from strandline.cdc.session import Session
from strandline.cli.signals import on_stop_request
from strandline.demo.bank import CREATE, TABLE, Clerk, Outcome, compared
from strandline.errors import CannotReplicate, OptionError, Stalled, StrandlineError
from strandline.stack import Kinesis, Stack
from strandline.stack.postgres import Postgres
from strandline.stack.processes import OVERLOADED, Child
from strandline.stalls import StallDetector

STREAM = "accounts"
SHARDS = 2
LEASE_S = 3
LONGEST_S = 600.0
SILENCE_S = 300.0
"""A step without progress for so long ends the demo."""
END_SILENCE_S = 30.0
LOOK_EVERY = 0.2
FIRST = 200
"""Records that arrive before the leader is killed."""
FILE = f"""\
postgres:
  slot: demo
  publication: demo
  create: {{{{tables: [{TABLE}]}}}}
kinesis: {{{{stream: {STREAM}}}}}
leadership: {{{{lease_s: {LEASE_S}}}}}
snapshot: never
checkpoint: {{directory}}/checkpoint
"""
LOG_END = "select pg_current_wal_flush_lsn() - '0/0'"
ACKNOWLEDGED = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = 'demo'"


def cdc(*, seconds: float = 10.0, seed: int = 1) -> None:
    """Change accounts of a bank, kill the instance that publishes, and compare what arrived with what was done.

    Parameters
    ----------
    seconds
        For how long accounts change after another instance has taken over.
    seed
        Another number, other changes.
    """
    if not 0 < seconds <= LONGEST_S:
        raise OptionError(f"--seconds takes more than 0, and {LONGEST_S:g} at most")
    stack = Stack(["postgres", "kinesis"])
    stopped = threading.Event()

    def stop() -> None:
        stopped.set()
        stack.cancelled.set()

    say("Starting a real Postgres and a Kinesis endpoint ...")
    with on_stop_request(stop), stack, tempfile.TemporaryDirectory(prefix="strandline-demo-") as directory:
        if stack.postgres is None or stack.kinesis is None:
            raise StrandlineError("the servers did not start")
        try:
            Demo(stack.postgres, stack.kinesis, Path(directory), stopped).run(seconds, seed)
        except (psycopg.Error, BotoCoreError, ClientError) as error:
            failure = stack.failure()  # which says why a server does not answer
            raise failure or StrandlineError(f"a server of the demo failed: {' '.join(str(error).split())}") from error


class Demo:
    """One run, on servers that are there."""

    def __init__(
        self,
        postgres: Postgres,
        kinesis: Kinesis,
        directory: Path,
        stopped: threading.Event,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._postgres = postgres
        self._kinesis = kinesis
        self._directory = directory
        self._stopped = stopped
        self._silence_s = silence_s

    def run(self, seconds: float, seed: int) -> None:
        """All of it; raises where something was lost."""
        with psycopg.connect(self._postgres.url, autocommit=True) as database:
            for statement in CREATE:
                database.execute(statement.encode())
        self._make_stream()
        file = self._directory / "cdc.yaml"
        file.write_text(FILE.format(directory=self._directory))
        say(f"\n{file}:\n{file.read_text()}")
        with self._instance("first", file) as first, self._instance("second", file) as second:
            both = [first, second]
            self._until(lambda: self._leader(both) and self._position(ACKNOWLEDGED), "an instance leads", both)
            say("One of them leads. Accounts change from now on ...")
            with Clerk(self._postgres.url, seed) as clerk:
                self._until(lambda: self._arrived() >= FIRST and self._leader(both), "changes arrive", both)
                leader = self._leader(both) or first
                standby = second if leader is first else first
                say(f"{self._arrived():,} records have arrived. kill -9 of the {leader.name} instance, which leads ...")
                killed_ms = time.time_ns() // 1_000_000
                leader.child.send(signal.SIGKILL)
                self._until(lambda: self._leader([standby]), "the other leads", [standby])
                say(f"The {standby.name} instance leads, and starts Spark ...")
                before = self._arrived()
                self._until(lambda: self._arrived() > before, "changes arrive again", [standby])
                say(f"Changes arrive again; accounts change for {seconds:g} seconds more.")
                self._stopped.wait(seconds)
            if clerk.failure is not None:
                raise StrandlineError(f"the clerk could not go on: {clerk.failure}")
            # The lease is written again and again: the log goes on beyond what is of interest.
            end = self._position(LOG_END)
            self._until(lambda: self._position(ACKNOWLEDGED) >= end, "all is acknowledged", [standby])
            outcome = compared(clerk.kept, [each for shard in self._kinesis.records(STREAM).values() for each in shard])
            show(clerk, outcome, killed_ms)
            standby.end()
        if outcome.lost or outcome.disorder or outcome.strange:
            raise StrandlineError("what arrived is not what was done; please report this with the seed")

    def _make_stream(self) -> None:
        client = AwsSession().create_client(
            "kinesis",
            region_name="us-east-1",
            endpoint_url=self._kinesis.endpoint,
            aws_access_key_id="local",
            aws_secret_access_key="local",  # noqa: S106  (the endpoint asks for one, and any will do)
        )
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)

    @contextlib.contextmanager
    def _instance(self, name: str, file: Path) -> Iterator["Instance"]:
        env = {**os.environ, **self._postgres.settings(), **self._kinesis.settings()}
        instance = Instance(name, file, self._directory / f"{name}.log", env)
        try:
            yield instance
        finally:
            instance.end()

    def _leader(self, instances: list["Instance"]) -> "Instance | None":
        """The one of these that leads."""
        with Session(self._postgres.url) as session:
            try:
                found = lease_status(session, "demo")
            except CannotReplicate:
                return None  # There is no table of leases before the first instance has made it.
        if found is None or found.now >= found.lease.expires:
            return None
        process = found.lease.holder.rpartition(":")[2]
        return next((each for each in instances if str(each.child.pid) == process), None)

    def _arrived(self) -> int:
        return self._kinesis.counts(STREAM).records

    def _position(self, sql: str) -> int:
        with psycopg.connect(self._postgres.url) as database:
            row = database.execute(sql.encode()).fetchone()
        return int(row[0]) if row else 0

    def _until(self, condition: Callable[[], object], what: str, alive: list["Instance"]) -> None:
        """Wait for a condition while these instances run; progress is what they log and what arrives."""

        def progress() -> object:
            return [self._arrived(), *(instance.child.logged_bytes() for instance in alive)]

        # One of them leads or is to lead; the other waits, which takes no CPU.
        detectors = [StallDetector(self._silence_s, progress, pid=instance.child.pid) for instance in alive]
        while not condition():
            if self._stopped.wait(LOOK_EVERY):
                raise StrandlineError("the demo was stopped")
            for instance in alive:
                if instance.child.exit_code is not None:
                    raise StrandlineError(f"the {instance.name} instance has ended: {instance.last_words()}")
            problems = [detector.problem() for detector in detectors]
            if all(problems):
                raise Stalled("strandline cdc run", f"{problems[0]}, before {what},", OVERLOADED)


class Instance:
    """A process of `strandline cdc run`, and what it has said."""

    def __init__(self, name: str, file: Path, log: Path, env: dict[str, str]) -> None:
        self.name = name
        self._log = log
        say(f"$ strandline cdc run --config {file.name}   # the {name} instance")
        command = [sys.executable, "-m", "strandline", "cdc", "run", "--config", str(file)]
        # It ends with us, however we end. A terminal's Ctrl-C is for us alone, and we end it in good order.
        self.child = Child(name=f"the {name} instance", command=command, log=log, cwd=Path.cwd(), env=env)
        self.child.start()

    def last_words(self) -> str:
        return (self._log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]

    def end(self) -> None:
        """End it in good order; at once where it makes no progress."""
        self.child.stop(signal.SIGTERM, END_SILENCE_S)


def show(clerk: Clerk, outcome: Outcome, killed_ms: int) -> None:
    """The end of it, as a table."""
    over = outcome.began[max(outcome.began)] - killed_ms
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in (
        ("changes committed", f"{clerk.changes:,}"),
        ("changes rolled back", f"{clerk.rolled_back:,}"),
        ("records arrived", f"{outcome.arrived:,}"),
        ("of these repeats", f"{outcome.repeats:,}"),
        ("of what was rolled back", f"{outcome.strange:,}"),
        ("lost", f"{outcome.lost:,}"),
        ("out of order", f"{outcome.disorder:,}"),
        ("fail-over", f"{over / 1e3:,.1f} s"),
    ):
        table.add_row(name, value)
    Console().print(table)


def say(line: str) -> None:
    """A line for the user."""
    print(line, flush=True)
