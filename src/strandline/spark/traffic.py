"""`http_traffic`: captured HTTP traffic as a DataFrame with one row a transaction.

A connection lies in one Kafka partition, so each task reads some partitions whole and needs nothing from the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.kafka.starts import milliseconds
from strandline.ordered.merge import Part
from strandline.spark.ordered import planned, range_parts
from strandline.spark.slice import merged
from strandline.spark.traffic_options import TrafficOptions
from strandline.spark.worker import settle
from strandline.wire.assembly import Assembly
from strandline.wire.table import SCHEMA

RECORDS_A_TASK = 50_000
"""Partitions that have fewer share a task."""
BATCH_BYTES = 8 << 20


@dataclass
class Share(InputPartition):
    """What one task reads."""

    parts: Mapping[Partition, Part]
    ceiling: int
    is_spread: bool


class HttpTraffic(DataSource):
    """See `TrafficOptions` for the options."""

    @classmethod
    def name(cls) -> str:
        return "http_traffic"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> "TrafficReader":  # noqa: ARG002  (Spark's signature)
        return TrafficReader(TrafficOptions.parse(self.options))


class TrafficReader(DataSourceReader):
    """A range of a capture, by Kafka partition."""

    def __init__(self, options: TrafficOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Share the partitions out; called once a query, where Spark plans it."""
        return planned(self._plan())

    async def _plan(self) -> list[InputPartition]:
        now = datetime.now(UTC)
        ceiling = milliseconds(now + self._options.max_ahead)
        cluster = Cluster(self._options.settings)
        try:
            parts = await range_parts(cluster, self._options, now, ceiling)
        finally:
            cluster.close()
        return [Share(share, ceiling, len(parts) > 1) for share in shares(parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Put the transactions of some partitions together; called by a task."""
        # Where there is nothing to read, Spark makes a partition of its own.
        if isinstance(partition, Share):
            settle()
            yield from _transactions(partition, self._options)


def shares(parts: Mapping[Partition, Part]) -> list[dict[Partition, Part]]:
    """Partitions that have something, small ones together."""
    found: list[dict[Partition, Part]] = []
    records = RECORDS_A_TASK
    for partition, part in sorted(parts.items()):
        if part.start < part.end:
            if records >= RECORDS_A_TASK:
                found.append({})
                records = 0
            found[-1][partition] = part
            records += part.end - part.start
    return found


def _transactions(share: Share, options: TrafficOptions) -> Iterator[pa.RecordBatch]:
    assembly = Assembly(options.capture(is_spread=share.is_spread))
    for batch in merged(share.parts, share.ceiling, options):
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "key", "value"))
        for partition, offset, key, value in zip(*columns, strict=True):
            assembly.take(partition, offset, key, value)
            if assembly.rows.nbytes >= BATCH_BYTES:
                yield assembly.rows.take()
    assembly.end()
    if len(assembly.rows):
        yield assembly.rows.take()
