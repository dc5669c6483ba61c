"""Instances that are processes of their own, killed, frozen, cut off, their Postgres restarted: one leads, none lies.

Without Spark, so that there is time for every kind of trouble; with it, see tests/spark/test_cdc_run.py.
"""

import itertools
import logging
import os
import random
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from strandline.cdc.lease import create_lease_table
from strandline.cdc.session import Session
from strandline.stack import FailRecords, Fault, Kinesis, Refuse, Shuffle, Throttle, TimeOut
from tests.cdc.history import TABLE, TRIGGERS
from tests.cdc.instances import Instance, Trouble, await_more, finish, in_turn, running
from tests.cdc.load import Load
from tests.cdc.support import Place

EPOCH_ROWS = 200
FAULTS: list[list[Fault]] = [
    [Throttle(records_per_s=200)],
    [FailRecords(share=0.5), Shuffle()],
    [TimeOut(accepts=True, closes_after_s=0, share=0.2)],
    [Refuse(code="InternalFailure", share=0.3)],
    [],
]

log = logging.getLogger(__name__)


@pytest.fixture
def stream(either: Place, kinesis: Kinesis) -> Iterator[str]:
    either.prepare(TABLE, TRIGGERS, published="table item")
    with Session(either.dsn) as session:
        create_lease_table(session)
    client = boto3.client(
        "kinesis",
        endpoint_url=kinesis.endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )
    client.create_stream(StreamName=either.name, ShardCount=3)
    yield either.name


def test_whatever_happens_to_the_leader_what_arrives_is_what_happened(
    either: Place, stream: str, kinesis: Kinesis, tmp_path: Path
) -> None:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.warning("STRANDLINE_SEED=%d", seed)
    chance, numbers = random.Random(seed), itertools.count()
    for kind in ("planned", "done"):
        (tmp_path / kind).mkdir()
    dsn = f"{either.dsn}?options=-c%20logical_decoding_work_mem%3D64kB"
    program = [
        "-m", "tests.cdc.led", stream, str(tmp_path), dsn, either.slot, either.publication, str(EPOCH_ROWS),
    ]  # fmt: skip

    def start() -> Instance:
        return Instance(program, tmp_path / f"instance-{next(numbers)}.log", kinesis.settings())

    with running(start, 2) as instances:
        trouble = Trouble(either, start, instances, seed)
        kinds = [
            trouble.kill, trouble.freeze, trouble.cut_lock, trouble.cut_slot, trouble.restart_postgres,
            trouble.crash_postgres,
        ]  # fmt: skip
        trouble.led()
        with Load(either, seed, publication=either.publication) as load:
            turns = range(int(os.environ.get("STRANDLINE_TURNS") or len(kinds)))
            for turn, what, faults in zip(turns, in_turn(chance, kinds), in_turn(chance, FAULTS), strict=False):
                kinesis.set_faults(stream, *faults, seed=seed + turn)
                await_more(kinesis, either, trouble)
                trouble.thaw()
                log.warning("turn %d: %s, %s", turn, what.__name__, faults)
                what()
            await_more(kinesis, either, trouble)
            trouble.thaw()
        repeats = finish(kinesis, either, trouble, epoch_rows=EPOCH_ROWS)
        records = kinesis.counts(stream).records
    log.warning("%s, %d conflicts", dict(load.committed), load.conflicts)
    log.warning("%d records, %d of them repeats", records, repeats)
