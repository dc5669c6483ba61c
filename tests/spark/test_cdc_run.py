"""`strandline cdc run` as its users run it: several instances, under load, and all that can happen to them.

`STRANDLINE_SEED` repeats a trial. `make soak` makes the long ones; `STRANDLINE_TURNS` says how long.
"""

import itertools
import logging
import os
import random
import re
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import boto3
import pyspark
import pytest

from strandline.stack import FailRecords, Fault, Kinesis, Refuse, Shuffle, Throttle, TimeOut
from strandline.stack.postgres import Postgres
from tests.cdc.history import TABLE, TRIGGERS
from tests.cdc.instances import PATIENCE, Instance, Trouble, await_more, family, finish, in_turn, running, signal_all
from tests.cdc.load import Load
from tests.cdc.support import Place
from tests.spark.cluster import command, parent
from tests.support import TIMEOUT, run_strandline, wait_for

EPOCH_ROWS = 400

log = logging.getLogger(__name__)
Start = Callable[[], Instance]


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.warning("STRANDLINE_SEED=%d", chosen)
    return chosen


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    with Place(postgres) as place:
        place.sql(TABLE, TRIGGERS)
        yield place


def configured(place: Place, kinesis: Kinesis, directory: Path, *, master: str = "local[2,4]") -> Path:
    """A stream, and the file for a place of which nothing is made yet but its table."""
    client = boto3.client(
        "kinesis",
        endpoint_url=kinesis.endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.create_stream(StreamName=place.name, ShardCount=3)
    file = directory / "cdc.yaml"
    file.write_text(f"""\
postgres:
  dsn: {place.dsn}?options=-c%20logical_decoding_work_mem%3D64kB
  slot: {place.slot}
  create: {{tables: [item]}}
kinesis: {{stream: {place.name}}}
events: {{split_key_changes: true}}
epochs: {{rows: {EPOCH_ROWS}}}
leadership: {{lease_s: 3}}
checkpoint: {directory / "checkpoint"}
# A load that truncates and alters its tables all the time would have them read again and again.
snapshot: never
spark: {{master: "{master}"}}
""")
    return file


@pytest.fixture
def config(place: Place, kinesis: Kinesis, tmp_path: Path) -> Path:
    return configured(place, kinesis, tmp_path)


def with_patience(config: Path, *, lease_s: int, frozen_after_s: int) -> None:
    """Change how long a leader, and a process of Spark, may stand still."""
    text = config.read_text().replace("lease_s: 3", f"lease_s: {lease_s}")
    config.write_text(text.replace("spark: {", f"spark: {{frozen_after_s: {frozen_after_s}, "))


def starter(config: Path, kinesis: Kinesis, *program: str) -> Start:
    """Starts the command, or another program that is given the file."""
    numbers = itertools.count()
    program = (*(program or ("-m", "strandline", "cdc", "run", "--config")), str(config))
    # For masters that start executors, which are not told where Spark is otherwise.
    env = {**kinesis.settings(), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    return lambda: Instance(program, config.parent / f"instance-{next(numbers)}.log", env)


def test_a_killed_leader_is_followed_by_the_next_and_nothing_is_lost(
    place: Place, kinesis: Kinesis, config: Path, seed: int
) -> None:
    config.write_text(f"{config.read_text()}observe: 127.0.0.1:0\n")
    start = starter(config, kinesis)
    kinesis.set_faults(
        place.name, FailRecords(share=0.1), TimeOut(accepts=True, closes_after_s=0, share=0.1), seed=seed
    )
    with running(start, 2) as both:
        trouble = Trouble(place, start, both, seed)
        leader = trouble.led()
        # Who waits has no session of Spark; and who leads no more may have had one.
        (standby,) = (each for each in both if each is not leader)
        assert standby.leads() or not [each for each in family(standby.process.pid) if "java" in command(each)]
        with Load(place, seed, publication="strandline"):
            await_more(kinesis, place, trouble)
            wait_for(lambda: figure(trouble.led(), "events_total") > 50, "it tells what it has sent")
            trouble.kill_worker()
            trouble.cut_slot()
            await_more(kinesis, place, trouble)
            # It may be another than at first, where the machine has stood still for longer than the lease.
            leader = trouble.led()
            both.remove(leader)
            (standby,) = both
            leader.end(signal.SIGKILL)
            wait_for(lambda: trouble.leader() is standby, "the other leads")
            await_more(kinesis, place, trouble)
        finish(kinesis, place, trouble, epoch_rows=EPOCH_ROWS)
        told = run_strandline("cdc", "status", "--config", config)
        assert f":{standby.process.pid}, number " in told.stdout, told
        assert re.search(r"^lag +[\d,]+ bytes of log, [\d.]+ s$", told.stdout, re.MULTILINE), told
        assert standby.end(signal.SIGTERM) == 0, standby.said()
    assert "ending in good order" in standby.said()
    assert "Traceback" not in standby.said()


# Where tasks run, where the slot is read, and where the end of an epoch is told.
KINDS = ("pyspark.worker", "python_streaming_source_runner", "python_streaming_sink_runner")


def watched(leader: Instance, kind: str) -> list[int]:
    """The Python processes of Spark of a kind that have a supervisor beside them."""
    found = {parent(each) for each in family(leader.process.pid) if " -I -S -c " in command(each)}
    return [each for each in found if command(each).rstrip().endswith(kind)]


def freeze(leader: Instance, kind: str) -> None:
    """All of a kind, once there are any; until they are ended."""
    found = wait_for(lambda: watched(leader, kind), f"{kind} has a supervisor")
    signal_all(found, signal.SIGSTOP)
    # Changes may arrive meanwhile: the rest of an epoch that was under way.
    wait_for(lambda: not set(found) & set(family(leader.process.pid)), f"{kind} is ended")


def test_a_process_of_spark_that_stands_still_is_replaced_and_the_same_leader_goes_on(
    place: Place, kinesis: Kinesis, config: Path, seed: int
) -> None:
    # Nor is the lease lost where the machine stalls: there is nobody else to lead.
    with_patience(config, lease_s=60, frozen_after_s=6)
    start = starter(config, kinesis)
    with running(start, 1) as instances:
        trouble = Trouble(place, start, instances, seed)
        leader = trouble.led()
        wait_for(leader.leads, "the slot is made", PATIENCE)
        with Load(place, seed, publication="strandline"):
            for kind in KINDS:
                await_more(kinesis, place, trouble)
                freeze(leader, kind)
                await_more(kinesis, place, trouble)
        finish(kinesis, place, trouble, epoch_rows=EPOCH_ROWS)
        assert leader.said().count("leading '") == 1, leader.said()


# As the command, with less patience.
HASTY = """
import sys
from datetime import timedelta
from pathlib import Path
from strandline.cli import cdc
cdc.PATIENCE = timedelta(seconds=45)
cdc.run(config=Path(sys.argv[1]))
"""


def test_a_leader_that_gets_no_further_and_cannot_mend_it_is_followed_by_the_next(
    place: Place, kinesis: Kinesis, config: Path, seed: int
) -> None:
    # The lease outlasts a machine that stalls: it is to be lost for another reason.
    with_patience(config, lease_s=15, frozen_after_s=15)
    start = starter(config, kinesis, "-c", HASTY)
    with running(start, 2) as instances:
        trouble = Trouble(place, start, instances, seed)
        # Changes count from when the slot is made.
        wait_for(lambda: any(each.leads() for each in instances), "one leads", PATIENCE)
        with Load(place, seed, publication="strandline"):
            await_more(kinesis, place, trouble)
            leader = trouble.led()
            # Also the processes that start others, and those that would kill them.
            frozen = [each for each in family(leader.process.pid)[1:] if "java" not in command(each)]
            signal_all(frozen, signal.SIGSTOP)
            told = (
                "any more: nothing has got on for 45 s: Spark has ended no epoch, and no task has shown that it lives"
            )
            wait_for(lambda: told in leader.said(), "it gives up, and says why", PATIENCE)
            await_more(kinesis, place, trouble)
            # With the JVM ends whoever stood still.
            wait_for(lambda: not any(map(command, frozen)), "they are gone")
        finish(kinesis, place, trouble, epoch_rows=EPOCH_ROWS)


def figure(instance: Instance, name: str) -> float:
    """What an instance tells of itself."""
    (address,) = re.findall(r"http://\S+/metrics", instance.said())
    with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
        (found,) = re.findall(rf"^strandline_cdc_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found)


FAULTS: list[list[Fault]] = [
    # Less than a shard gets of one epoch that is full, however seldom there is one.
    [Throttle(records_per_s=EPOCH_ROWS // 4)],
    [FailRecords(share=0.5), Shuffle()],
    [TimeOut(accepts=True, closes_after_s=0, share=0.2)],
    [Refuse(code="InternalFailure", share=0.3)],
    [],
]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "stage",
    [(18, "local[2,4]"), (16, "local[2,4]"), (18, "local-cluster[2,1,1024]")],
    ids=["18-local", "16-local", "18-executors"],
)
def test_under_faults_of_every_kind_what_arrives_is_what_happened(
    stage: tuple[int, str], kinesis: Kinesis, open_dir: Path, tmp_path: Path, seed: int
) -> None:
    major, master = stage
    turns = int(os.environ.get("STRANDLINE_TURNS") or 8)
    server = Postgres(open_dir / "postgres", temporary=True, major=major)
    server.start(Event())
    try:
        with Place(server) as place:
            place.sql(TABLE, TRIGGERS)
            start = starter(configured(place, kinesis, tmp_path, master=master), kinesis)
            with running(start, 2) as instances:
                endure(place, kinesis, Trouble(place, start, instances, seed), seed, turns)
    finally:
        server.stop()


def struck(kinesis: Kinesis, place: Place) -> int:
    """How often the endpoint has done otherwise than to accept and to say so."""
    found = kinesis.counts(place.name)
    return found.failed_records + found.throttled_records + found.refused_requests + found.unanswered_requests


def await_strike(kinesis: Kinesis, place: Place, trouble: Trouble, before: int) -> None:
    """The endpoint's faults have struck once more."""

    def has_struck() -> bool:
        trouble.check()
        return struck(kinesis, place) > before

    wait_for(has_struck, "a fault of the endpoint strikes", PATIENCE)


def endure(place: Place, kinesis: Kinesis, trouble: Trouble, seed: int, turns: int) -> None:
    chance = random.Random(seed)
    kinds = [
        trouble.kill, trouble.freeze, trouble.kill_worker, trouble.kill_executor, trouble.cut_lock, trouble.cut_slot,
        trouble.restart_postgres, trouble.crash_postgres,
    ]  # fmt: skip
    happened: Counter[str] = Counter()
    trouble.led()
    try:
        with Load(place, seed, publication="strandline") as load:
            for turn, what, faults in zip(range(turns), in_turn(chance, kinds), in_turn(chance, FAULTS), strict=False):
                before = struck(kinesis, place)
                kinesis.set_faults(place.name, *faults, seed=seed + turn)
                await_more(kinesis, place, trouble)
                if faults:
                    await_strike(kinesis, place, trouble, before)
                trouble.thaw()
                log.warning("turn %d: %s, %s", turn, what.__name__, faults)
                what()
                happened[what.__name__] += 1
            await_more(kinesis, place, trouble)
        trouble.thaw()
        repeats = finish(kinesis, place, trouble, epoch_rows=EPOCH_ROWS)
        records = kinesis.counts(place.name).records
        log.warning("%s; %s, %d conflicts", dict(happened), dict(load.committed), load.conflicts)
        log.warning("%d records, %d of them repeats", records, repeats)
    finally:
        trouble.thaw()


@pytest.mark.parametrize(
    ("change", "to", "problem"),
    [
        ("slot: ", "slto: ", "cdc.yaml:3: key 'postgres.slto' is unknown; did you mean 'slot'?"),
        ("stream: ", "region: ", "key 'kinesis.stream' is missing"),
        ("tables: [item]", "tables: [absent]", 'relation "public.absent" does not exist'),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(config: Path, change: str, to: str, problem: str) -> None:
    config.write_text(config.read_text().replace(change, to))
    told = run_strandline("cdc", "run", "--config", config)
    assert problem in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert told.returncode in {1, 2}
