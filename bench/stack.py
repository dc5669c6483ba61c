"""Seconds from `strandline up` to ready: cold (an empty cache), warm, and beside a plain start of the broker.

`python -m bench.stack`, with `--quick` for a smoke run.
"""

import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from tests.support import Up, jars_on_disk

from bench.amounts import parse
from bench.figures import Figure, report
from strandline.stack import KafkaCluster
from strandline.stack.kafka import kafka_runtime


@dataclass(frozen=True)
class Amounts:
    """How often each warm start is made."""

    warm_runs: int = 5


QUICK = Amounts(warm_runs=1)


def seconds_until_ready(*arguments: str, env: dict[str, str] | None = None) -> float:
    """Run `strandline up` as a user does, until it prints its settings."""
    begin = time.perf_counter()
    with Up(*arguments, env=env) as up:
        up.settings()
        elapsed = time.perf_counter() - begin
        if up.end(signal.SIGINT) != 0:
            raise AssertionError(f"exit code {up.process.returncode}")
    return elapsed


def plain_kafka() -> float:
    """Format and start one broker the plain way: no class archive."""
    runtime = replace(kafka_runtime(Event()), archive=Path("/nowhere"))
    with tempfile.TemporaryDirectory() as directory:
        cluster = KafkaCluster("kafka", Path(directory, "kafka"), temporary=True)
        begin = time.perf_counter()
        cluster.start(runtime, Event())
        elapsed = time.perf_counter() - begin
        cluster.stop()
    return elapsed


if __name__ == "__main__":
    amounts, is_quick = parse("bench.stack", Amounts(), QUICK)
    runs = range(amounts.warm_runs)
    kafka_runtime(Event())
    with tempfile.TemporaryDirectory() as directory:
        env = {**jars_on_disk(Path(directory, "ivy")), "STRANDLINE_CACHE": str(Path(directory, "cache"))}
        cold = seconds_until_ready(env=env)
    warm = statistics.median(seconds_until_ready() for _ in runs)
    kafka = statistics.median(seconds_until_ready("--only", "kafka") for _ in runs)
    plain = statistics.median(plain_kafka() for _ in runs)
    report(
        "From `strandline up` to ready",
        [
            Figure("stack.up_cold_s", cold, "all servers, empty cache, jars from disk and not from the network"),
            Figure("stack.up_warm_s", warm, f"all servers, median of {len(runs)}"),
            Figure("stack.up_kafka_s", kafka, f"Kafka alone, median of {len(runs)}"),
            Figure("stack.plain_kafka_s", plain, "peer: one broker formatted and started without the class archive"),
            Figure("stack.up_kafka_vs_plain", plain / kafka, "how many times faster, our own start-up included"),
        ],
        is_quick=is_quick,
    )
