"""Rows of changes as records of a stream: the leadership written into each, and those found that no stream takes.

All of it on whole columns; only what is sent becomes a Python object.
"""

from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.cdc.deadletter import DeadLetter

MAX_KEY = 256


class Record(msgspec.Struct, frozen=True, gc=False):
    """What the plan and the request need of a row."""

    key: str
    size: int
    """Of data and key, as Kinesis counts it."""
    data: bytes
    """The event with the leadership in it."""
    lsn: int
    ordinal: int


class Outgoing(NamedTuple):
    """A batch, made ready."""

    records: list[Record]
    letters: list[DeadLetter]
    hottest: tuple[str, int] | None
    """The key with the most records, and how many."""


def beginning(leadership: int | None) -> bytes:
    """What every event begins with, in place of its brace; the brace itself where nobody leads."""
    return b"{" if leadership is None else f'{{"leadership":{leadership},'.encode()


def put_away(record: Record, leadership: int | None, reason: str) -> DeadLetter:
    """A record as a dead letter: the event as it was read, the same whoever leads."""
    event = b"{" + record.data[len(beginning(leadership)) :]
    return DeadLetter(record.lsn, record.ordinal, reason, record.key, event)


def made_ready(batch: pa.RecordBatch, leadership: int | None, max_record: int) -> Outgoing:
    """Records to send, and dead letters with their reasons, both in the order of the batch."""
    keys, events = batch.column("partition_key"), batch.column("event")
    is_event = pc.and_kleene(pc.starts_with(events, pattern=b"{"), pc.greater(pc.binary_length(events), 2))
    length = pc.utf8_length(keys)
    is_key = pc.and_kleene(pc.greater(length, 0), pc.less_equal(length, MAX_KEY))
    led = pc.binary_replace_slice(events, start=0, stop=1, replacement=beginning(leadership))
    size = pc.add(pc.binary_length(led), pc.binary_length(keys))
    fits = pc.less_equal(size, max_record)
    good = pc.fill_null(pc.and_kleene(pc.and_kleene(is_event, is_key), fits), False)
    letters = []
    if not pc.all(good, min_count=0).as_py():
        wrong = pc.indices_nonzero(pc.invert(good))
        for row, has_event, has_key in zip(wrong, is_event.take(wrong), is_key.take(wrong), strict=True):
            letters.append(_letter(batch, row.as_py(), has_event.as_py(), has_key.as_py(), max_record))
        batch, keys, led, size = batch.filter(good), keys.filter(good), led.filter(good), size.filter(good)
    columns = (keys, size, led, batch.column("lsn"), batch.column("ordinal"))
    return Outgoing(list(map(Record, *[column.to_pylist() for column in columns])), letters, _hottest(keys))


def _letter(batch: pa.RecordBatch, row: int, has_event: bool | None, has_key: bool | None, most: int) -> DeadLetter:
    lsn, ordinal, key, event = (
        batch.column(name)[row].as_py() for name in ("lsn", "ordinal", "partition_key", "event")
    )
    if not has_event:
        reason = "the event is not a JSON object with members"
    elif not has_key:
        reason = f"the partition key has {len(key or '')} characters; Kinesis takes 1 to {MAX_KEY}"
    else:
        reason = f"the record has more than the {most:,} bytes that the stream takes"
    return DeadLetter(lsn, ordinal, reason, key, event)


def _hottest(keys: Any) -> tuple[str, int] | None:
    if not len(keys):
        return None
    counted = pc.value_counts(keys)
    most = pc.max(counted.field("counts")).as_py()
    return counted.field("values")[pc.index(counted.field("counts"), most).as_py()].as_py(), most
