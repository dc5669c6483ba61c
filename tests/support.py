"""What several tests need: waiting for a condition, the processes of a stack, `strandline up` as a user runs it."""

import hashlib
import json
import multiprocessing
import os
import queue
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.stack.cache import cache_dir
from strandline.stack.jars import kafka_version, pinned
from strandline.stack.kafka import KafkaCluster
from strandline.stack.processes import OWNER_VARIABLE

T = TypeVar("T")

TIMEOUT = 120.0
WARM = multiprocessing.get_context("forkserver")
COMMANDS = ("capture", "commands", "imports", "proxy", "replay", "report", "tail", "up")
WARM.set_forkserver_preload([f"strandline.cli.{name}" for name in COMMANDS])


def wait_for(condition: Callable[[], T], what: str, timeout: float = TIMEOUT) -> T:
    """Wait until a condition holds; what it is then."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still not so after {timeout:g} s: {what}"
        time.sleep(0.02)
    return found


@contextmanager
def frozen(kafka: KafkaCluster) -> Iterator[None]:
    """Kafka takes bytes and says nothing."""
    kafka.brokers[0].send(signal.SIGSTOP)
    # All of its threads: one that goes on for a moment could answer.
    os.waitid(os.P_PID, kafka.brokers[0].pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        kafka.brokers[0].send(signal.SIGCONT)


def owned_processes(owner: int) -> dict[int, str]:
    """The processes that belong to the stack of a process, with their command lines."""
    mark = f"{OWNER_VARIABLE}={owner}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
            except OSError:
                continue
    return found


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file below a directory, with a hash of its content: equal when nothing was changed."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "-"
        for path in sorted(directory.rglob("*"))
    }


class Up:
    """`strandline up`, run as a command."""

    def __init__(self, *arguments: str | Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "up", "--format", "json", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.pid = self.process.pid
        self.messages: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for_message(self, start: str) -> None:
        """Wait until it logs a line that starts so."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it has not said '{start}': {self.messages}") from None
            assert line is not None, f"it ended without saying '{start}': {self.messages}"
            self.messages.append(json.loads(line)["message"] if line.startswith("{") else line.rstrip())
            if self.messages[-1].startswith(start):
                return

    def settings(self) -> dict[str, dict[str, str]]:
        """Wait until it is ready; the client settings that it prints."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        assert readable, f"not ready after {TIMEOUT:g} s: {self.messages}"
        line = self.process.stdout.readline()
        assert line, f"it ended before it was ready: {self.rest()}"
        settings: dict[str, dict[str, str]] = json.loads(line)
        return settings

    def rest(self) -> list[str]:
        """All that it has logged, once it has ended."""
        self._reader.join(TIMEOUT)
        while (line := self._lines.get(timeout=1)) is not None:
            self.messages.append(line.rstrip())
        return self.messages

    def end(self, signal_: signal.Signals) -> int:
        """Send it a signal and wait for its exit code."""
        self.process.send_signal(signal_)
        return self.process.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def run_strandline(
    *arguments: str | Path, timeout: float = TIMEOUT, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A command of `strandline` that ends by itself."""
    command = [sys.executable, "-m", "strandline", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


def run_warm(
    *arguments: str | Path, timeout: float = TIMEOUT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The same in a process that begins with its imports done: it is forked from one that has done nothing else."""
    with tempfile.TemporaryDirectory() as made:
        command, outputs = [*map(str, arguments)], (Path(made, "out"), Path(made, "err"))
        given = dict(os.environ if env is None else env)
        process = WARM.Process(target=_run_command, args=(command, given, *map(str, outputs)))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, *(file.read_bytes() for file in outputs))
        out, err = (file.read_text() for file in outputs)
        return subprocess.CompletedProcess(command, process.exitcode, out, err)


def _run_command(arguments: list[str], env: dict[str, str], out: str, err: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["strandline", *arguments]
    # As the interpreter opens them, where they are no terminal.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    runpy.run_module("strandline", run_name="__main__", alter_sys=True)


def lines_of(told: str) -> list[str]:
    """What a command told, but for the notes that it waits for Kafka: it has them wherever the machine is slow."""
    return [line for line in told.splitlines() if "waiting for Kafka at " not in line]


def write_records(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes],
    partition: int = 0,
    *,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Write records and wait until the broker has them; with further settings where it asks for more."""
    failures = []
    producer = Producer({**(settings or {}), "bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error) if error else None
        )
    assert producer.flush(TIMEOUT) == 0
    assert not failures


def read_records(
    bootstrap: str, topic: str, count: int, partition: int = 0, *, settings: Mapping[str, str] | None = None
) -> list[bytes]:
    """Read so many records of a partition from its start; with further settings where the broker asks for more."""
    reader = {"bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False}
    consumer = Consumer({**(settings or {}), **reader})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + TIMEOUT
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records of {topic} after {TIMEOUT:g} s"
            found += [bytes(m.value() or b"") for m in consumer.consume(count, timeout=0.2) if m.error() is None]
        return found
    finally:
        consumer.close()


def jars_on_disk(directory: Path) -> dict[str, str]:
    """Copy Kafka's jars from the cache to a package server on disk.

    Returns the environment in which they are fetched from there, so that a first run can be tried without a network.
    """
    for jar in pinned():
        place = directory / "local" / jar.organisation / jar.module / jar.revision / "jars" / f"{jar.module}.jar"
        place.parent.mkdir(parents=True)
        shutil.copy(cache_dir() / f"kafka-{kafka_version()}" / jar.file_name, place)
    return {"JAVA_TOOL_OPTIONS": f"-Divy.default.ivy.user.dir={directory}"}
