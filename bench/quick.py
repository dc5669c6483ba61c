"""Runs the smoke form of every benchmark, one after another: `python -m bench.quick [NAME ...]`.

Each runs as `python -m bench.NAME --quick` in a process of its own. It fails when it exits with another code than 0,
takes longer than its limit, prints not all of its figures, or leaves a process behind. The others run all the same; the
last lines of one that failed are printed. Ends with a line for each, and exits 1 if one failed.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from strandline.spark.starting import PREPARING

PR_SET_CHILD_SUBREAPER: Final = 36
LIMIT_S = 900.0
"""For one benchmark: many times what it takes on two idle cores."""
ENDED_WITHIN_S = 20.0
TAIL_LINES = 40
FIGURES: Final = {
    "core": """
        core.frontier_pairs_per_s core.bare_pairs_per_s core.frontier_vs_bare core.frontier_bytes_per_item
    """,
    "kinesis_endpoint": """
        kinesis.records_per_s kinesis.cpu_us_per_record kinesis.kept_records_per_s
        kinesis.kept_cpu_us_per_record kinesis.moto_records_per_s kinesis.moto_cpu_us_per_record
        kinesis.kept_vs_moto
    """,
    "stack": """
        stack.up_cold_s stack.up_warm_s stack.up_kafka_s stack.plain_kafka_s stack.up_kafka_vs_plain
    """,
    "ordered": """
        ordered.rows_per_s ordered.inversions ordered.first_batch_ms ordered.peak_mb ordered.vs_confluent
        ordered.random1k_vs_confluent ordered.vs_confluent_tuned ordered.random1k_vs_confluent_tuned
        ordered.confluent_rows_per_s ordered.confluent_inversions ordered.confluent_peak_mb
        ordered.confluent_tuned_rows_per_s ordered.confluent_tuned_inversions
        ordered.confluent_tuned_peak_mb
    """,
    "spark_ordered": """
        spark_ordered.in_order spark_ordered.limit_noop_s spark_ordered.limit_arrow_s
        spark_ordered.noop_vs_limit spark_ordered.arrow_vs_limit spark_ordered.noop_s spark_ordered.arrow_s
    """,
    "capture": """
        capture.added_p50_ms capture.added_p99_ms capture.requests_per_s capture.vs_direct
        capture.none_added_p50_ms capture.none_added_p99_ms capture.none_requests_per_s
        capture.none_vs_direct capture.held_added_p50_ms capture.held_added_p99_ms
        capture.held_requests_per_s capture.held_vs_direct
    """,
    "replay": """
        replay.late_p50_ms_200_fixed replay.late_p99_ms_200_fixed replay.late_p50_ms_200_poisson
        replay.late_p99_ms_200_poisson replay.late_p50_ms_2000_fixed replay.late_p99_ms_2000_fixed
        replay.late_p50_ms_2000_poisson replay.late_p99_ms_2000_poisson replay.bare_p50_ms
        replay.bare_p99_ms replay.late_p50_ms replay.late_p99_ms replay.drift_ms replay.order_violations
        replay.max_rps replay.bare_rps replay.vs_bare replay.cpu_us replay.memory_growth
        capture.added_p50_ms capture.added_p99_ms capture.requests_per_s capture.vs_direct
        capture.none_added_p50_ms capture.none_added_p99_ms capture.none_requests_per_s
        capture.none_vs_direct capture.held_added_p50_ms capture.held_added_p99_ms
        capture.held_requests_per_s capture.held_vs_direct
    """,
    "fleet": """
        fleet.rps_1 fleet.rps_2 fleet.late_p99_ms
    """,
    "traffic": """
        traffic.batch_per_s traffic.stream_per_s
    """,
    "report": """
        report.right report.cpu_seconds report.seconds report.peak_mb
    """,
    "gateway": """
        gateway.delivered_per_s gateway.delivered_per_cpu_s gateway.live_p50_ms gateway.live_p99_ms
        gateway.warm_p50_ms gateway.warm_p99_ms gateway.cold100_p50_ms gateway.cold10k_ms
        gateway.kb_per_idle gateway.storm500_ms
    """,
    "proxy": """
        proxy.produce_ratio proxy.fetch_ratio proxy.produce_cpu_s_per_m proxy.fetch_cpu_s_per_m
        proxy.added_p50_ms proxy.added_p99_ms proxy.metadata_ms
    """,
    "cdc": """
        cdc.changes_per_s cdc.cpu_us_per_change cdc.peak_mb cdc.snapshot_rows_per_s
        cdc.snapshot_cpu_us_per_row cdc.decode_per_s cdc.latency_p50_ms cdc.latency_p99_ms
        cdc.failover_kill_s cdc.failover_freeze_s
    """,
    "soak": """
        soak.kills soak.records_kept
    """,
    "soak_replay": """
        soak.disturbances soak.requests soak.repeats
    """,
}
"""What each benchmark prints, without what depends on a peer that need not be installed (wrk, kafkars)."""


@dataclass(frozen=True)
class Outcome:
    """What became of one benchmark; without faults it is ok."""

    name: str
    seconds: float
    faults: tuple[str, ...]


def adopt_orphans() -> None:
    """Have a process whose parent has ended become our child, so that none can be left behind unseen."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused to make this process a subreaper")


def descendants() -> dict[int, str]:
    """All processes below this one, with their command lines; those that have ended are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, last = {}, [os.getpid()]
    while last:
        last = [child for parent in last for child in parents.get(parent, [])]
        for pid in last:
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:100]
    return found


def end_descendants(within_s: float) -> list[str]:
    """Wait so long for what is left to end by itself; what had to be killed."""
    deadline = time.monotonic() + within_s
    while (left := descendants()) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed = list(left.values())
    while left:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
        left = descendants()
    return killed


def missing_figures(name: str, output: str) -> list[str]:
    """The figures of a benchmark that have no line `name value` in its output."""
    printed = {line.split(" ")[0] for line in output.splitlines() if line.count(" ") == 1}
    return [figure for figure in FIGURES[name].split() if figure not in printed]


def command(name: str) -> list[str]:
    return [sys.executable, "-m", f"bench.{name}", "--quick"]


def run(name: str) -> Outcome:
    """Run one and print the end of its output if it failed."""
    faults = []
    begin = time.perf_counter()
    with TemporaryFile("w+") as out:
        # Where Spark's class archive is missing, a session would have it made in a process that goes on behind it.
        process = subprocess.Popen(command(name), stdout=out, stderr=out, env={**os.environ, PREPARING: "1"})
        try:
            if code := process.wait(LIMIT_S):
                faults.append(f"exit code {code}")
        except subprocess.TimeoutExpired:
            faults.append(f"took longer than {LIMIT_S:g} s")
            process.kill()
            process.wait()
        seconds = time.perf_counter() - begin
        faults += [f"left behind: {line}" for line in end_descendants(ENDED_WITHIN_S)]
        out.seek(0)
        output = out.read()
    if not faults:
        faults += [f"no figure {figure}" for figure in missing_figures(name, output)]
    if faults:
        print(f"--- {name}: {'; '.join(faults)}; the end of its output:")
        print("\n".join(output.splitlines()[-TAIL_LINES:]), flush=True)
    return Outcome(name, seconds, tuple(faults))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.quick")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)}; all of them unless named")
    names = parser.parse_args().names or list(FIGURES)
    if unknown := set(names) - set(FIGURES):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcomes = []
    try:
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            outcomes.append(run(name))
    except BaseException:
        end_descendants(0)
        raise
    for outcome in outcomes:
        print(f"{outcome.name:18}{outcome.seconds:7.1f} s  {'failed' if outcome.faults else 'ok'}")
    print(f"{'all':18}{sum(outcome.seconds for outcome in outcomes):7.1f} s")
    sys.exit(1 if any(outcome.faults for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
