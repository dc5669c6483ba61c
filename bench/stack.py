"""Seconds from `strandline up` to ready: cold (an empty cache), warm, and beside Kafka's own tools run one by one."""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from os import environ
from pathlib import Path
from threading import Event

from bench.figures import Figure, report
from strandline.stack import KafkaCluster
from strandline.stack.kafka import kafka_runtime
from strandline.stack.testing import jars_on_disk

WARM_RUNS = 5
TIMEOUT = 120


def seconds_until_ready(*arguments: str, env: dict[str, str] | None = None) -> float:
    """Run `strandline up` as a user does, until it prints its settings."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "strandline", "up", "--format", "json", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**environ, **(env or {})}
    ) as up:
        if up.stdout is None or not json.loads(up.stdout.readline()):
            raise AssertionError("no settings")
        elapsed = time.perf_counter() - begin
        up.send_signal(signal.SIGINT)
        if up.wait(TIMEOUT) != 0:
            raise AssertionError(f"exit code {up.returncode}")
    return elapsed


def plain_kafka() -> float:
    """Format and start one broker the plain way: no class archive."""
    runtime = replace(kafka_runtime(Event()), archive=Path("/nowhere"))
    with tempfile.TemporaryDirectory() as directory:
        cluster = KafkaCluster("kafka", Path(directory, "kafka"), throwaway=True)
        begin = time.perf_counter()
        cluster.start(runtime, Event())
        elapsed = time.perf_counter() - begin
        cluster.stop()
    return elapsed


if __name__ == "__main__":
    kafka_runtime(Event())
    with tempfile.TemporaryDirectory() as directory:
        env = {**jars_on_disk(Path(directory, "ivy")), "STRANDLINE_CACHE": str(Path(directory, "cache"))}
        cold = seconds_until_ready(env=env)
    warm = statistics.median(seconds_until_ready() for _ in range(WARM_RUNS))
    kafka = statistics.median(seconds_until_ready("--only", "kafka") for _ in range(WARM_RUNS))
    plain = statistics.median(plain_kafka() for _ in range(WARM_RUNS))
    report(
        "From `strandline up` to ready",
        [
            Figure("stack.up_cold_s", cold, "all servers, empty cache, jars from disk and not from the network"),
            Figure("stack.up_warm_s", warm, f"all servers, median of {WARM_RUNS}"),
            Figure("stack.up_kafka_s", kafka, f"Kafka alone, median of {WARM_RUNS}"),
            Figure("stack.plain_kafka_s", plain, "peer: one broker formatted and started without the class archive"),
            Figure("stack.up_kafka_vs_plain", plain / kafka, "how many times faster, our own start-up included"),
        ],
    )
