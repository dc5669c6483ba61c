"""Captured traffic replayed by a fleet on Spark in local mode: how fast and how late, with one worker and with two.

By the notes of a target in a process of its own, as in `bench.replay`, with results on. On two cores the workers share
them with the target, the broker and Spark itself.

`python -m bench.fleet`, with `--quick` for a smoke run.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered import progress
from bench.replay import PARTITIONS, SOURCE, fill, notes, replay, target, times
from strandline.stack import Stack

WORKERS = (1, 2)
RATE = 1_000.0


@dataclass(frozen=True)
class Amounts:
    """How much is replayed, and for how long."""

    seconds: float = 20.0
    """At 1,000 requests a second, for the lateness."""
    requests: int = 100_000
    """As fast as the target answers."""


QUICK = Amounts(seconds=1.0, requests=2_000)


def speed(address: str, directory: Path, topic: str, workers: int, requests: int) -> float:
    """Requests a second, as fast as the target answers, from the first to arrive to the last."""
    with target(directory) as (port, log, _):
        replay(address, topic, port, "--speedup", "max", "--workers", str(workers))
    came = notes(log)
    if set(came.number.tolist()) != set(range(requests)):
        raise AssertionError(f"{len(set(came.number.tolist()))} requests of {requests} arrived")
    rate = len(came.at) / ((came.at.max() - came.at.min()) / 1e9)
    progress(f"{workers} workers: {rate:,.0f} requests/s")
    return float(rate)


def lateness(address: str, directory: Path, topic: str, workers: int, due: np.ndarray) -> float:
    """The 99th percentile in milliseconds: arrivals by the target's notes, against the reference of the run."""
    fill(address, topic, due.tolist())
    with target(directory) as (port, log, _):
        replay(address, topic, port, "--workers", str(workers))
    came = notes(log)
    if set(came.number.tolist()) != set(range(len(due))):
        raise AssertionError(f"{len(set(came.number.tolist()))} requests of {len(due)} arrived")
    late = (came.at - (SOURCE + due[came.number] + reference(address, topic, len(due)))) / 1e6
    p50, p99 = (float(np.percentile(late, share)) for share in (50, 99))
    progress(f"{workers} workers at {RATE:g}/s Poisson: late p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return p99


def reference(address: str, topic: str, count: int) -> int:
    """How long after its time at the source everything was due, in nanoseconds: the results tell."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(f"{topic}-results", number, 0) for number in range(PARTITIONS)])
    gaps: list[int] = []
    deadline = time.monotonic() + 60
    while len(gaps) < count:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(gaps)} results of {count}")
        for message in consumer.consume(1000, 1.0):
            result = json.loads(message.value() or b"")
            gaps.append(result["due_us"] - result["source_time_us"])
    consumer.close()
    return min(gaps) * 1000


def main() -> None:
    amounts, is_quick = parse("bench.fleet", Amounts(), QUICK)
    with Stack(["kafka"]) as stack, tempfile.TemporaryDirectory(prefix="strandline-bench-") as place:
        address, directory = stack.kafka[0].address, Path(place)
        fill(address, "fast", list(range(0, amounts.requests * 1000, 1000)))
        rates = [speed(address, directory, "fast", workers, amounts.requests) for workers in WORKERS]
        due = times(RATE, amounts.seconds, poisson=True)
        late = [lateness(address, directory, f"timed-{workers}", workers, due) for workers in WORKERS]
    what = f"ms late at {RATE:g} requests/s, p99, the worse of 1 and 2 workers ({late[0]:.2f} and {late[1]:.2f})"
    report(
        "a replay by a fleet",
        [
            Figure("fleet.rps_1", rates[0], "requests/s, 1 worker"),
            Figure("fleet.rps_2", rates[1], "requests/s, 2 workers"),
            Figure("fleet.late_p99_ms", max(late), what),
        ],
        is_quick=is_quick,
    )


if __name__ == "__main__":
    main()
