"""How fast rows that are there before the slot are published, into an endpoint that keeps none."""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench.cdc import FILL, Bench, used, wait_until
from bench.figures import Figure
from bench.ordered import progress
from strandline.stack import Stack

ROWS_AT_ONCE = 100_000


def snapshot(stack: Stack, directory: Path, rows: int) -> Iterator[Figure]:
    """From the first row that is accepted to the last."""
    bench = Bench(stack, directory, "existing")
    with psycopg.connect(bench.url, autocommit=True) as database:
        for first in range(0, rows, ROWS_AT_ONCE):
            database.execute(FILL.encode(), (first, min(first + ROWS_AT_ONCE, rows) - 1))
        database.execute("vacuum analyze account")
    with bench.running() as process:
        wait_until(lambda: bench.accepted() > 0, "the first row is accepted")
        began, before, cpu_before = time.perf_counter(), bench.accepted(), used(process.pid)[0]
        wait_until(lambda: bench.accepted() >= rows, "all rows are accepted")
        took = time.perf_counter() - began
        cpu, peak = used(process.pid)
    progress(f"{rows:,} rows of a snapshot in {took:.1f} s, {peak:.0f} MB at the peak")
    # Few rows may all be accepted between two looks.
    counted = max(rows - before, 1)
    yield Figure("cdc.snapshot_rows_per_s", counted / took, "rows that were there, from the first accepted to the last")
    yield Figure("cdc.snapshot_cpu_us_per_row", (cpu - cpu_before) / counted * 1e6, "CPU of the instance, µs a row")
