"""Epochs on a real slot and a real endpoint, ended at any step; and the same with a fault built in, which is found."""

import itertools
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadLimit

from strandline.cdc.assembly import Assembly
from strandline.cdc.failures import Problem
from strandline.cdc.kinesis import Sender
from strandline.cdc.limits import SendOptions
from strandline.cdc.outgoing import Record
from strandline.cdc.sending import Failures, Fence
from strandline.errors import ChangesLost
from strandline.spark.postgres_wal import WalReader
from strandline.spark.wal_options import WalOptions
from strandline.stack import AcceptedRecord, FailRecords, Fault, Kinesis, Shuffle, TimeOut
from strandline.wire.event import Stamp
from tests.cdc.epochs import STEPS, Checkpoint, Crash, Query, Reach
from tests.cdc.history import READ, TABLE, TRIGGERS, check
from tests.cdc.load import Load
from tests.cdc.support import Place
from tests.support import wait_for

EPOCH_ROWS = 200
LIVES = int(os.environ.get("STRANDLINE_LIVES") or 8)

FAULTS: list[list[Fault]] = [
    [],
    [FailRecords(share=0.5), Shuffle()],
    [TimeOut(accepts=True, closes_after_s=0, share=0.2)],
]

log = logging.getLogger(__name__)


class Trial:
    """A place, a stream of the same name, and lives of a query that reads one and writes the other."""

    def __init__(self, place: Place, kinesis: Kinesis, sender: Sender, **options: str) -> None:
        self.place = place
        self.kinesis = kinesis
        self.checkpoint = Checkpoint()
        self._sender = sender
        self._options = options
        self._lives = itertools.count(1)

    def query(self, reader: type[WalReader] = WalReader, **how: Any) -> Query:
        """The next life."""
        dsn = f"{self.place.dsn}?options=-c%20logical_decoding_work_mem%3D64kB"
        options = WalOptions.parse({
            "dsn": dsn, "slot": self.place.slot, "publications": self.place.publication, "splitKeyChanges": "true",
            "maxRowsPerEpoch": str(EPOCH_ROWS), "idleEvery": "100ms", **self._options,
        })  # fmt: skip
        return Query(lambda: reader(options), self._sender, self.checkpoint, leadership=next(self._lives), **how)

    def live(self, query: Query, until: Callable[[], bool], *, cut: bool = False) -> None:
        """Epoch after epoch; what ends it is raised, once its connection is gone."""
        try:
            while not until():
                query.epoch()
        finally:
            if cut:
                # As when the process is killed: what was to be told last is not.
                self._is_free()
            else:
                self._await_told(query.reader)
            query.reader.stop()
            wait_for(self._is_free, "the slot is given back")

    def _await_told(self, reader: WalReader) -> None:
        """The server has what was acknowledged. It may not get the last word of a connection that is closed."""
        if reader._changes is not None:
            acknowledged = reader._changes._replication._flushed
            wait_for(lambda: self.place.confirmed() >= acknowledged, "the slot is told")

    def _is_free(self) -> bool:
        """Whether nobody reads the slot. A task that was broken off may do so for a while; it is ended."""
        mine = f"from pg_replication_slots where slot_name = '{self.place.slot}' and active"
        return not self.place.sql(f"select pg_terminate_backend(active_pid) {mine}")

    def finish(self, query: Query) -> None:
        """All that was written by now is delivered and acknowledged."""
        end = int(self.place.sql("select pg_current_wal_flush_lsn() - '0/0'")[0][0])
        self.live(query, lambda: self.place.confirmed() >= end)

    def records(self) -> Mapping[str, list[AcceptedRecord]]:
        return self.kinesis.records(self.place.name)

    def check(self, **bounds: int) -> int:
        return check(self.place.sql(READ), self.records(), **bounds)


@pytest.fixture
def sender(kinesis: Kinesis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Sender]]:
    """Makes the stream and a sender to it."""
    for name, value in kinesis.settings().items():
        monkeypatch.setenv(name, value)
    made: list[Sender] = []

    def make(stream: str) -> Sender:
        boto3.client("kinesis", endpoint_url=kinesis.endpoint).create_stream(StreamName=stream, ShardCount=3)
        made.append(Sender(stream, options=SendOptions(max_request_records=50), endpoint_url=kinesis.endpoint))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_ended_at_any_step_nothing_is_lost_and_repeats_are_within_an_epoch(
    either: Place, kinesis: Kinesis, sender: Callable[[str], Sender]
) -> None:
    seed = int(os.environ.get("STRANDLINE_SEED") or random.randrange(1 << 32))
    log.warning("STRANDLINE_SEED=%d", seed)
    chance = random.Random(seed)
    either.prepare(TABLE, TRIGGERS, published="table item")
    trial = Trial(either, kinesis, sender(either.name))
    once_each = chance.sample(STEPS, len(STEPS))
    with Load(either, seed, publication=either.publication) as load:
        for life in range(LIVES):
            faults = chance.choice(FAULTS)
            kinesis.set_faults(either.name, *faults, seed=seed + life)
            step = once_each.pop() if once_each else chance.choice(STEPS)
            # Each step once in an epoch with events: only those can come again.
            reach = crash_at(step, chance.randrange(1, 6), also_idle=life >= len(STEPS))
            log.warning("life %d: %s", life, step)
            with pytest.raises(Crash):
                trial.live(trial.query(reach=reach), lambda: False, cut=chance.random() < 0.5)
    kinesis.set_faults(either.name)
    trial.finish(trial.query())
    repeats = trial.check(epoch_rows=EPOCH_ROWS)
    log.warning("%s, %d conflicts; %d repeats", dict(load.committed), load.conflicts, repeats)
    assert repeats


class AcknowledgesWhatItReads(WalReader):
    """Tells the slot of an epoch before anybody has delivered it."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        end = super().latestOffset(start, limit)
        if self._changes is not None:
            self._changes.acknowledge(end["end"])
        return end


def cut_as_if_whole(assembly: Assembly, stamp: Stamp) -> None:
    """A part of a transaction taken for all of it."""
    honest_cut(assembly, stamp)
    last = assembly._ready[-1]
    assembly._reached = replace(last.reached, end=stamp.lsn + 1)
    assembly._ready[-1] = replace(last, reached=assembly._reached)


honest_cut = Assembly._cut


async def put_and_believe(sender: Sender, fence: Fence, records: list[Record]) -> Failures | Problem:
    """An answer of which the records that failed are not looked at."""
    outcome = await honest_put(sender, fence, records)
    return outcome if isinstance(outcome, Problem) else []


honest_put = Sender._put


def without_the_third(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield pa.concat_batches([batch[:2], batch[3:]])


def second_before_first(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The events of the first two rows under each other's ids; they are of one key."""
    for batch in rows:
        order = pa.array([1, 0, *range(2, batch.num_rows)])
        mixed = {name: batch.column(name).take(order) for name in ("partition_key", "event")}
        columns = [mixed.get(name, batch.column(name)) for name in batch.schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def numbered_anew(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        events = [bytes(event).replace(b'"ordinal":', b'"ordinal":7') for event in batch.column("event").to_pylist()]
        yield batch.set_column(batch.schema.get_field_index("event"), "event", pa.array(events, pa.binary()))


@pytest.fixture
def trial(place: Place, kinesis: Kinesis, sender: Callable[[str], Sender]) -> Trial:
    """Two steps of one key, and more rows than go in an epoch: epochs of 2, 200 and 200 rows, however they come."""
    place.prepare(TABLE, TRIGGERS, published="table item")
    place.in_one("insert into item values (0, 1, 'x')", "update item set version = 2 where id = 0")
    place.sql(f"insert into item select n, 1, 'x' from generate_series(1, {2 * EPOCH_ROWS}) n")
    return Trial(place, kinesis, sender(place.name))


def crash_at(at: str, number: int = 1, *, also_idle: bool = False) -> Reach:
    """Raises when a step is reached for the so manieth time, of epochs with events or of all."""
    left = [number]

    def reach(step: str, has_events: bool) -> None:
        left[0] -= step == at and (has_events or also_idle)
        if not left[0]:
            raise Crash

    return reach


def crash_and_go_on(trial: Trial, reader: type[WalReader], step: str, number: int = 1) -> None:
    """Without a checkpoint, from where the slot stands."""
    with pytest.raises(Crash):
        trial.live(trial.query(reader, reach=crash_at(step, number)), lambda: False)
    trial.checkpoint = Checkpoint()
    trial.finish(trial.query(reader))


@pytest.mark.parametrize("step", STEPS)
def test_without_a_checkpoint_it_goes_on_from_the_slot_and_loses_nothing(trial: Trial, step: str) -> None:
    crash_and_go_on(trial, WalReader, step, 2)
    trial.check()


def test_who_acknowledges_before_it_delivers_is_found(trial: Trial) -> None:
    crash_and_go_on(trial, AcknowledgesWhatItReads, "noted")
    with pytest.raises(AssertionError, match="steps were taken, and 0 arrived"):
        trial.check()


def test_who_acknowledges_while_it_delivers_is_found(trial: Trial) -> None:
    crash_and_go_on(trial, AcknowledgesWhatItReads, "sending", 2)
    with pytest.raises(AssertionError, match="arrived"):
        trial.check()


def test_who_acknowledges_before_it_delivers_is_stopped_where_there_is_a_checkpoint(trial: Trial) -> None:
    trial.live(trial.query(), lambda: trial.checkpoint.done > 0)

    def crash_when_more_is_acknowledged(step: str, has_events: bool) -> None:
        if step == "noted":
            before, last = trial.checkpoint.planned[-2:]
            # An advance without events is safe once it is noted.
            if last["end"] > before["end"] and has_events:
                raise Crash

    with pytest.raises(Crash):
        trial.live(trial.query(AcknowledgesWhatItReads, reach=crash_when_more_is_acknowledged), lambda: False)
    with pytest.raises(ChangesLost, match="was acknowledged by somebody else"):
        trial.live(trial.query(), lambda: False)


def test_who_acknowledges_a_transaction_of_which_a_part_is_delivered_is_found(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Assembly, "_cut", cut_as_if_whole)
    crash_and_go_on(trial, WalReader, "read", 3)
    with pytest.raises(AssertionError, match="steps were taken, and 0 arrived"):
        trial.check()


def test_who_takes_a_failed_record_for_accepted_is_found(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sender, "_put", put_and_believe)
    trial.kinesis.set_faults(trial.place.name, FailRecords(share=0.1), seed=1)
    trial.finish(trial.query())
    with pytest.raises(AssertionError, match="arrived"):
        trial.check()


@pytest.mark.parametrize(
    ("altered", "found"),
    [
        (without_the_third, "steps were taken, and 0 arrived"),
        (second_before_first, "step 0 of"),
    ],
)
def test_who_drops_or_reorders_events_is_found(
    trial: Trial, altered: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], found: str
) -> None:
    trial.finish(trial.query(altered=altered))
    with pytest.raises(AssertionError, match=found):
        trial.check()


def test_who_numbers_events_otherwise_when_they_are_read_again_is_found(trial: Trial) -> None:
    with pytest.raises(Crash):
        trial.live(trial.query(reach=crash_at("sent")), lambda: False)
    trial.finish(trial.query(altered=numbered_anew))
    with pytest.raises(AssertionError, match=r"step 1 of|steps were taken"):
        trial.check()
