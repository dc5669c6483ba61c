"""Events as rows: what the source `postgres_wal` gives and every sink takes."""

from collections.abc import Sequence
from itertools import repeat

import pyarrow as pa

from strandline.cdc.assembly import Part

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


def rows(parts: Sequence[Part]) -> pa.RecordBatch:
    """Parts of transactions as one batch."""
    events = [event for part in parts for event in part.events]
    stamps = [stamp for part in parts for stamp in repeat(part.stamp, len(part.events))]
    columns = {
        "lsn": [stamp.lsn for stamp in stamps],
        "ordinal": [event.ordinal for event in events],
        "op": [event.op for event in events],
        "xid": [stamp.xid for stamp in stamps],
        "committed": [stamp.committed for stamp in stamps],
        "schema": [event.schema for event in events],
        "table": [event.table for event in events],
        "partition_key": [event.partition_key for event in events],
        "event": [event.event for event in events],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
