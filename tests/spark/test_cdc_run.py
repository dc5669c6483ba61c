"""`strandline cdc run` as its users run it: several instances, under load, one of them killed."""

import logging
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import boto3
import psycopg
import pytest

from strandline.stack import FailRecords, Kinesis
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
