"""Kills `strandline up` at random moments for as long as told, and checks each time that nothing is left or lost.

`python -m bench.soak [MINUTES]`, 10 unless told otherwise.
"""

import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support import Up, owned_processes, read_records, wait_for, write_records

LONGEST_LIFE_S = 7.0
RECORDS_A_ROUND = 100


def soak(minutes: float, data: Path) -> tuple[int, int]:
    """How often it was killed, and how many records it has kept through all of it."""
    chance = random.Random(11)
    deadline = time.monotonic() + minutes * 60
    kills, written = 0, 0
    while time.monotonic() < deadline:
        with Up("--data", data) as up:
            time.sleep(chance.random() * LONGEST_LIFE_S)
            up.end(signal.SIGKILL)
            wait_for(lambda: not owned_processes(up.pid), "all its processes are gone", timeout=20)
        kills += 1
        if kills % 5 == 0:
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
    with tempfile.TemporaryDirectory(prefix="strandline-soak-") as directory:
        Path(directory).chmod(0o755)
        killed, kept = soak(float(sys.argv[1]) if len(sys.argv) > 1 else 10, Path(directory, "data"))
    print("soak.kills", killed)
    print("soak.records_kept", kept)
