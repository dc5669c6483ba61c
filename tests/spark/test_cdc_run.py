"""`strandline cdc run` as its users run it: several instances, under load, one of them killed."""

import itertools
import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import boto3
import psycopg
import pytest

from strandline.stack import FailRecords, Fault, Kinesis, Refuse, Shuffle, Throttle, TimeOut
from strandline.stack.postgres import Postgres
from tests.cdc.history import READ, TABLE, TRIGGERS, check
from tests.cdc.support import Place
from tests.support import TIMEOUT, run_strandline, wait_for

KEYS = 40

log = logging.getLogger(__name__)


class Instance:
    """A process of `strandline cdc run`, and what it has said."""

    def __init__(self, config: Path, kinesis: Kinesis, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "strandline", "cdc", "run", "--config", str(config)]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out, env={**os.environ, **kinesis.settings()})

    def said(self) -> str:
        return self._log.read_text()

    def leads(self) -> bool:
        assert self.process.poll() is None, self.said()
        return "leading '" in self.said()

    def end(self, number: int) -> int:
        """Send a signal, and wait; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT)


class Load:
    """Somebody who writes: inserts, updates, deletes, changed keys, rolled-back work, long and short transactions."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT)

    def _run(self) -> None:
        with psycopg.connect(self._place.dsn) as database:
            while not self._stop.wait(0.01):
                for _ in range(self._random.choice([1, 2, 30])):
                    self._change(database)
                if self._random.random() < 0.2:
                    database.rollback()
                else:
                    database.commit()

    def _change(self, database: psycopg.Connection[tuple[object, ...]]) -> None:
        key, other = (self._random.randrange(KEYS) for _ in range(2))
        match self._random.randrange(5):
            case 0 | 1:
                database.execute(
                    "insert into item values (%s, 1, 'x') on conflict (id) do update set version = item.version + 1",
                    (key,),
                )
            case 2:
                database.execute("update item set version = version + 1 where id = %s", (key,))
            case 3:
                database.execute("delete from item where id = %s", (key,))
            case _:
                database.execute(
                    "update item set id = %s where id = %s and not exists (select from item where id = %s)",
                    (other, key, other),
                )


@pytest.fixture
def place(postgres: Postgres) -> Iterator[Place]:
    with Place(postgres) as place:
        place.sql(TABLE, TRIGGERS)
        yield place


@pytest.fixture
def config(place: Place, kinesis: Kinesis, tmp_path: Path) -> Path:
    client = boto3.client(
        "kinesis",
        endpoint_url=kinesis.endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.create_stream(StreamName=place.name, ShardCount=3)
    file = tmp_path / "cdc.yaml"
    file.write_text(f"""\
postgres:
  dsn: {place.dsn}
  slot: {place.slot}
  create: {{tables: [item]}}
kinesis: {{stream: {place.name}}}
events: {{split_key_changes: true}}
leadership: {{lease_s: 3}}
checkpoint: {tmp_path / "checkpoint"}
""")
    return file


@contextmanager
def instances(config: Path, kinesis: Kinesis, tmp_path: Path, count: int) -> Iterator[list[Instance]]:
    started = [Instance(config, kinesis, tmp_path / f"instance-{number}.log") for number in range(count)]
    try:
        yield started
    finally:
        for instance in started:
            if instance.process.poll() is None:
                instance.process.kill()
                instance.process.wait(TIMEOUT)


def arrived(kinesis: Kinesis, place: Place) -> int:
    return sum(map(len, kinesis.records(place.name).values()))


def test_a_killed_leader_is_followed_by_the_next_and_nothing_is_lost(
    place: Place, kinesis: Kinesis, config: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.info("seed %d", seed)
    kinesis.set_faults(place.name, FailRecords(share=0.1), seed=seed)
    with instances(config, kinesis, tmp_path, 2) as both:
        wait_for(lambda: any(instance.leads() for instance in both), "one leads")
        with Load(place, seed):
            wait_for(lambda: arrived(kinesis, place) > 50, "changes arrive", 2 * TIMEOUT)
            leader, standby = sorted(both, key=Instance.leads, reverse=True)
            assert not standby.leads()
            leader.end(signal.SIGKILL)
            wait_for(standby.leads, "the other leads")
            before = arrived(kinesis, place)
            wait_for(lambda: arrived(kinesis, place) > before + 100, "changes arrive again", 2 * TIMEOUT)
        kinesis.set_faults(place.name)
        end = place.sql("select pg_current_wal_flush_lsn() - '0/0'")[0][0]
        wait_for(lambda: place.confirmed() >= end, "all is acknowledged", 2 * TIMEOUT)
        check(place.sql(READ), kinesis.records(place.name))
        told = run_strandline("cdc", "status", "--config", config)
        assert f":{standby.process.pid}, number 2, for" in told.stdout, told
        assert standby.end(signal.SIGTERM) == 0, standby.said()
    assert "ending in good order" in standby.said()
    assert "Traceback" not in standby.said()


def family(process: int) -> list[int]:
    """A process and all that come from it."""
    found = [process]
    for each in found:
        with suppress(OSError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def signal_all(processes: Sequence[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


class Trouble:
    """Two instances, and what can happen to the one that leads."""

    def __init__(self, place: Place, start: Callable[[], Instance]) -> None:
        self._place = place
        self._start = start
        self._instances = [start(), start()]
        self._frozen: list[int] = []
        wait_for(lambda: any(instance.leads() for instance in self._instances), "one leads", 2 * TIMEOUT)

    def leader(self) -> Instance | None:
        rows = self._place.sql("select holder from strandline.lease where expires > clock_timestamp()")
        found = [one for one in self._instances if rows and rows[0][0].endswith(f":{one.process.pid}")]
        return found[0] if found else None

    def thaw(self) -> None:
        signal_all(self._frozen, signal.SIGCONT)
        self._frozen = []

    def kill(self, leader: Instance) -> None:
        leader.end(signal.SIGKILL)
        self._instances.remove(leader)
        self._instances.append(self._start())

    def freeze(self, leader: Instance) -> None:
        self._frozen = family(leader.process.pid)
        signal_all(self._frozen, signal.SIGSTOP)
        wait_for(lambda: self.leader() not in {None, leader}, "the other leads", 2 * TIMEOUT)

    def kill_worker(self, leader: Instance) -> None:
        signal_all(family(leader.process.pid)[-1:], signal.SIGKILL)

    def cut_lock(self, _leader: Instance) -> None:
        self._place.sql("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")

    def end(self) -> None:
        self.thaw()
        for instance in self._instances:
            instance.process.kill()
            instance.process.wait(TIMEOUT)


FAULTS: list[list[Fault]] = [
    [Throttle(records_per_s=200)],
    [FailRecords(share=0.5), Shuffle()],
    [TimeOut(accepts=True, closes_after_s=0, share=0.2)],
    [Refuse(code="InternalFailure", share=0.3)],
    [],
]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_under_faults_of_every_kind_what_arrives_is_what_happened(
    place: Place, kinesis: Kinesis, config: Path, tmp_path: Path
) -> None:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.warning("seed %d", seed)
    chance, numbers = random.Random(seed), itertools.count()
    trouble = Trouble(place, lambda: Instance(config, kinesis, tmp_path / f"instance-{next(numbers)}.log"))
    try:
        with Load(place, seed):
            for turn in range(8):
                kinesis.set_faults(place.name, *chance.choice(FAULTS), seed=seed + turn)
                wanted = arrived(kinesis, place) + 50
                wait_for(lambda wanted=wanted: arrived(kinesis, place) > wanted, "changes arrive", 4 * TIMEOUT)  # type: ignore[misc]
                trouble.thaw()
                what = chance.choice([trouble.kill, trouble.freeze, trouble.kill_worker, trouble.cut_lock])
                log.warning("turn %d: %s", turn, what.__name__)
                if (leader := trouble.leader()) is not None:
                    what(leader)
        kinesis.set_faults(place.name)
        trouble.thaw()
        end = place.sql("select pg_current_wal_flush_lsn() - '0/0'")[0][0]
        wait_for(lambda: place.confirmed() >= end, "all is acknowledged", 4 * TIMEOUT)
        repeats = check(place.sql(READ), kinesis.records(place.name))
        log.warning("%d records, %d of them repeats", arrived(kinesis, place), repeats)
    finally:
        trouble.end()


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
