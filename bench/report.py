"""`strandline report` on 1,000,000 exchanges out of a results topic: seconds and peak memory, Spark's start included.

The exchanges are of eight endpoints, about 1.6 kB each; two fields and a header are drawn anew for each answer, one
field in a hundred answers of one endpoint is renamed, and one endpoint is slower. The report must find just that.

`python -m bench.report`, with `--quick` for a smoke run.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from tests.topics import create_topics

from bench.amounts import parse
from bench.figures import Figure, report
from strandline.replay.encoding import encode_result
from strandline.replay.results import Attempt, Message, Outcome
from strandline.replay.retries import Verdict
from strandline.report.summary import Summary
from strandline.stack import Stack
from strandline.units import Nanos

TOPIC = "results"
PARTITIONS = 4
ENDPOINTS = 8
START_US = 1_767_225_600_000_000
CEILING_S = 240.0
CEILING_MB = 4_000.0
SAMPLE_EVERY_S = 0.5
TIMEOUT_S = 3_600
WORDS = "the mark that the tide leaves is how far the water has safely come and nothing below it is lost "
# In the place of these a record has its own.
OFFSET, TIME, TOOK, CONNECTION = 313_131_313_131, 1_777_777_777_777_777, 1_888_888_888_888_888, "connection-name"


@dataclass(frozen=True)
class Amounts:
    """How much is reported on."""

    exchanges: int = 1_000_000


QUICK = Amounts(exchanges=10_000)


def answer(item: dict[str, object], mark: str) -> Message:
    """An answer of about 600 bytes; `mark` stands for what is drawn anew."""
    body = {"item": item, "text": WORDS * 3, "request": f"{mark}a", "at": f"{mark}b"}
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: {mark}c\r\nServer: shop\r\n\r\n"
    return Message(head=head.encode(), body=msgspec.json.encode(body), status=200)


def template(endpoint: int, *, is_renamed: bool) -> bytes:
    """A result with signs in the places that differ from record to record."""
    item: dict[str, object] = {"name": f"item of {endpoint}", "price": endpoint * 1.5, "tags": ["a", "b", "c"]}
    changed = {("cost" if is_renamed and name == "price" else name): value for name, value in item.items()}
    asked = Message(head=f"GET /shelf{endpoint}/@@@ HTTP/1.1\r\nHost: shop\r\nAccept: */*\r\n\r\n".encode())
    time_ = Nanos(TIME * 1000)
    outcome = Outcome(
        partition=0,
        offset=OFFSET,
        ordinal=0,
        connection=CONNECTION,
        node="bench",
        generation=1,
        records=[(0, OFFSET)],
        source_request=asked,
        source_response=answer(item, "@@@@source@@@@@@"),
        source_complete=True,
        target_request=asked,
        attempts=[
            Attempt(response=answer(changed, "@@@@target@@@@@@"), sent=time_, first_byte=time_, end=Nanos(TOOK * 1000))
        ],
        source_time=time_,
        source_end=Nanos((TIME + 20_000) * 1000),
        due=time_,
        verdict=Verdict.MATCH,
        same_body=False,
        error=None,
    )
    return encode_result(outcome)


def results(count: int) -> Iterator[bytes]:
    """The records."""
    chance = random.Random(4)
    templates = {(e, r): template(e, is_renamed=r) for e in range(ENDPOINTS) for r in (False, True)}
    for number in range(count):
        endpoint = chance.randrange(ENDPOINTS)
        at = START_US + number * 200
        took = round((60_000 if endpoint == 3 else 20_000) * chance.lognormvariate(0, 0.3))
        made = templates[endpoint, endpoint == 5 and chance.random() < 0.01]
        for sign, value in (
            (str(OFFSET).encode(), b"%d" % number),
            (str(TIME + 20_000).encode(), b"%d" % (at + round(20_000 * chance.lognormvariate(0, 0.3)))),
            (str(TIME).encode(), b"%d" % at),
            (str(TOOK).encode(), b"%d" % (at + took)),
            (CONNECTION.encode(), b"connection-%d" % (number % 500)),
            (b"/@@@", b"/%d" % chance.randrange(200)),
            (b"@@@@source@@@@@@", b"%016x" % chance.getrandbits(64)),
            (b"@@@@target@@@@@@", b"%016x" % chance.getrandbits(64)),
        ):
            made = made.replace(sign, value)
        yield made


def fill(address: str, count: int) -> None:
    """Write the results to their topic."""
    create_topics({"bootstrap.servers": address}, NewTopic(TOPIC, PARTITIONS))
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "compression.type": "lz4"})
    for number, record in enumerate(results(count)):
        while True:
            try:
                producer.produce(TOPIC, record, partition=number % PARTITIONS, timestamp=START_US // 1000 + number // 5)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise TimeoutError("the broker did not take all records")


class Memory(threading.Thread):
    """Samples the memory of a process and all below it: what each has alone, and its part of what they share."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._is_over = threading.Event()
        self.peak_mb = 0.0

    def run(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            self.peak_mb = max(self.peak_mb, sum(map(_proportional_kb, _family(self._pid))) / 1000)

    def stop(self) -> float:
        self._is_over.set()
        self.join()
        return self.peak_mb


def _family(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def _proportional_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(address: str, out: Path) -> tuple[float, float, float, Summary]:
    """Run the command; its seconds, seconds of processor time and peak memory, and what it found."""
    arguments = ["--results", TOPIC, "--kafka", address, "--out", str(out), "--master", "local[2]"]
    begin, before = time.perf_counter(), os.times()
    running = subprocess.Popen([sys.executable, "-m", "strandline", "report", *arguments], stdout=subprocess.DEVNULL)
    memory = Memory(running.pid)
    memory.start()
    code = running.wait(TIMEOUT_S)
    seconds, after = time.perf_counter() - begin, os.times()
    if code:
        raise AssertionError(f"strandline report ends with {code}")
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, processor, memory.stop(), msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)


def is_right(summary: Summary, count: int) -> bool:
    """Whether the report found what was planted and nothing else."""
    found = {(each.endpoint, each.path) for each in summary.differences}
    slower = [each.name for each in summary.endpoints if each.regressed]
    planted = {("GET /shelf5/{n}", "$.item.price"), ("GET /shelf5/{n}", "$.item.cost")}
    return summary.exchanges == count and found == planted and slower == ["GET /shelf3/{n}"]


def figures(count: int) -> list[Figure]:
    """The figures of the report, for `bench-fleet` too."""
    with Stack(["kafka"]) as stack, tempfile.TemporaryDirectory() as directory:
        fill(stack.kafka[0].address, count)
        seconds, processor, peak_mb, summary = measure(stack.kafka[0].address, Path(directory) / "report")
    right = float(is_right(summary, count))
    return [
        Figure("report.right", right, "1 when just what was planted is found", floor=1, is_exact=True),
        Figure("report.cpu_seconds", processor, "of processor time, JVM and Python together"),
        Figure("report.seconds", seconds, "from the command's start to its end", ceiling=CEILING_S),
        Figure("report.peak_mb", peak_mb, "of all its processes together", ceiling=CEILING_MB),
    ]


if __name__ == "__main__":
    chosen, is_quick = parse("bench.report", Amounts(), QUICK)
    found = figures(chosen.exchanges)
    report(f"{chosen.exchanges:,} exchanges, 2 cores (load {os.getloadavg()[0]:.1f})", found, is_quick=is_quick)
