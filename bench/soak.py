"""Kills `strandline up` at random moments for 10 minutes, and checks each time that nothing is left or lost.

`python -m bench.soak`, with `--minutes 60` for longer and `--quick` for a smoke run.
"""

import random
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support import Up, owned_processes, read_records, wait_for, write_records

from bench.amounts import parse
from bench.figures import Figure, report

RECORDS_A_ROUND = 100


@dataclass(frozen=True)
class Amounts:
    """How long it goes on, how long a stack may live, and after how many kills the records are checked."""

    minutes: float = 10.0
    longest_life_s: float = 7.0
    check_every: int = 5


QUICK = Amounts(minutes=0.01, longest_life_s=3.0, check_every=1)


def soak(amounts: Amounts, data: Path) -> tuple[int, int]:
    """How often it was killed, and how many records it has kept through all of it."""
    chance = random.Random(11)
    deadline = time.monotonic() + amounts.minutes * 60
    kills, written = 0, 0
    while time.monotonic() < deadline:
        with Up("--data", data) as up:
            time.sleep(chance.random() * amounts.longest_life_s)
            up.end(signal.SIGKILL)
            wait_for(lambda: not owned_processes(up.pid), "all its processes are gone", timeout=20)
        kills += 1
        if kills % amounts.check_every == 0:
            with Up("--data", data) as up:
                bootstrap = up.settings()["kafka"]["bootstrap.servers"]
                values = [str(n).encode() for n in range(written, written + RECORDS_A_ROUND)]
                write_records(bootstrap, "soak", values)
                written += RECORDS_A_ROUND
                found = read_records(bootstrap, "soak", written)
                if found != [str(n).encode() for n in range(written)]:
                    raise AssertionError(f"the records differ after {kills} kills")
            print(f"killed {kills} times, {written} records kept", flush=True)
    return kills, written


if __name__ == "__main__":
    chosen, is_quick = parse("bench.soak", Amounts(), QUICK)
    with tempfile.TemporaryDirectory(prefix="strandline-soak-") as directory:
        Path(directory).chmod(0o755)
        killed, kept = soak(chosen, Path(directory, "data"))
    report(
        f"`strandline up`, killed at random moments for {chosen.minutes:g} minutes",
        [
            Figure("soak.kills", killed, "how often it was killed, with nothing left of it", floor=1, is_exact=True),
            Figure("soak.records_kept", kept, "records that were all there each time", floor=1, is_exact=True),
        ],
        is_quick=is_quick,
    )
