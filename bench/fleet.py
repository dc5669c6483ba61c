"""Captured traffic replayed by a fleet on Spark in local mode: how fast and how late, with one worker and with two.

By the notes of a target in a process of its own, as in `bench.replay`, with results on. On two cores the workers share
them with the target, the broker and Spark itself.

`python -m bench.fleet`, with `--seconds 5 --requests 20000` for a quick trial.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.figures import Figure, report
from bench.ordered import progress
from bench.replay import SOURCE, fill, iso, notes, replay, target, times
from strandline.stack import Stack

WORKERS = (1, 2)
RATE = 1_000.0
HEAD_START_S = 30.0
"""Spark starts, and the members join their group, before the first request is due."""


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
    """The 99th percentile in milliseconds, against a clock that was fixed before."""
    with target(directory) as (port, log, _):
        wall = (time.time_ns() // 1000) * 1000 + int(HEAD_START_S * 1e9)
        replay(address, topic, port, "--workers", str(workers), "--start-at", f"{iso(SOURCE)}@{iso(wall)}")
    came = notes(log)
    if set(came.number.tolist()) != set(range(len(due))):
        raise AssertionError(f"{len(set(came.number.tolist()))} requests of {len(due)} arrived")
    late = (came.at - (wall + due[came.number])) / 1e6
    p50, p99 = (float(np.percentile(late, share)) for share in (50, 99))
    progress(f"{workers} workers at {RATE:g}/s Poisson: late p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return p99


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--requests", type=int, default=100_000)
    chosen = parser.parse_args()
    with Stack(["kafka"]) as stack, tempfile.TemporaryDirectory(prefix="strandline-bench-") as place:
        address, directory = stack.kafka[0].address, Path(place)
        fill(address, "fast", list(range(0, chosen.requests * 1000, 1000)))
        rates = [speed(address, directory, "fast", workers, chosen.requests) for workers in WORKERS]
        due = times(RATE, chosen.seconds, poisson=True)
        fill(address, "timed", due.tolist())
        late = [lateness(address, directory, "timed", workers, due) for workers in WORKERS]
    what = f"ms late at {RATE:g} requests/s, p99, the worse of 1 and 2 workers ({late[0]:.2f} and {late[1]:.2f})"
    report(
        "a replay by a fleet",
        [
            Figure("fleet.rps_1", rates[0], "requests/s, 1 worker"),
            Figure("fleet.rps_2", rates[1], "requests/s, 2 workers"),
            Figure("fleet.late_p99_ms", max(late), what),
        ],
    )


if __name__ == "__main__":
    main()
