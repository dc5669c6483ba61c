"""Events as rows: what the source `postgres_wal` gives and every sink takes."""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from strandline.cdc.assembly import Part
from strandline.wire.event import Event, Stamp

SCHEMA = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("xid", pa.int64()),
        pa.field("committed", pa.timestamp("us", "UTC")),
        pa.field("schema", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("partition_key", pa.string(), nullable=False),
        pa.field("event", pa.binary(), nullable=False),
    ]
)
COLUMNS = (
    "lsn bigint not null, ordinal bigint not null, op string not null, xid bigint, committed timestamp, "
    "schema string not null, table string not null, partition_key string not null, event binary not null"
)
"""The same for Spark."""
VALUES: dict[str, Callable[[list[Event], list[Stamp]], list[Any]]] = {
    "lsn": lambda _, stamps: [stamp.lsn for stamp in stamps],
    "ordinal": lambda events, _: [event.ordinal for event in events],
    "op": lambda events, _: [event.op for event in events],
    "xid": lambda _, stamps: [stamp.xid for stamp in stamps],
    "committed": lambda _, stamps: [stamp.committed for stamp in stamps],
    "schema": lambda events, _: [event.schema for event in events],
    "table": lambda events, _: [event.table for event in events],
    "partition_key": lambda events, _: [event.partition_key for event in events],
    "event": lambda events, _: [event.event for event in events],
}
"""Each column of events, of which each has a stamp beside it."""


def told_as(names: Sequence[str]) -> str:
    """Some of the columns for Spark, in their order."""
    return ", ".join(column for column in COLUMNS.split(", ") if column.split()[0] in names)


def rows(parts: Sequence[Part], names: Sequence[str] = SCHEMA.names) -> pa.RecordBatch:
    """Parts of transactions as one batch of the named columns."""
    schema = pa.schema([field for field in SCHEMA if field.name in names])
    events = [event for part in parts for event in part.events]
    stamps = [stamp for part in parts for stamp in repeat(part.stamp, len(part.events))]
    arrays = [pa.array(VALUES[field.name](events, stamps), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
