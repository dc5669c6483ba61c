"""Captured traffic as a table: in a batch by the source `http_traffic`, as a stream by `kafka_ordered` and a state.

The state is kept by Kafka partition, not by connection: Spark's cost is by key and epoch, and a connection lies in one
partition. Rows cross Spark's stateful operator as Arrow batches in one column, which costs no conversion.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from strandline.errors import OptionError
from strandline.kafka.cluster import Cluster
from strandline.ordered.loop import LoopThread
from strandline.spark.options import KAFKA
from strandline.spark.ordered import KafkaOrdered
from strandline.spark.traffic import BATCH_BYTES, HttpTraffic
from strandline.spark.traffic_options import StreamOptions
from strandline.spark.worker import settle
from strandline.wire.assembly import Capture
from strandline.wire.resuming import ResumableAssembly
from strandline.wire.table import SCHEMA

STATE = "state binary"
PACKED = "rows binary"
PACKED_COLUMN = "rows"


def http_traffic(
    spark: SparkSession, *, kafka: Mapping[str, str], streaming: bool = False, **options: object
) -> DataFrame:
    """One row for each HTTP transaction of a capture topic.

    `kafka` takes librdkafka's names. The options are those of the source `http_traffic`; a stream takes no `end`, and
    takes `stateBytes` and the limits of an epoch of `kafka_ordered` besides.
    """
    if not isinstance(kafka, Mapping):
        raise OptionError(f"kafka takes settings by name, such as {{'bootstrap.servers': 'host:9092'}}, not {kafka!r}")
    named = {f"{KAFKA}{name}": str(value) for name, value in kafka.items()}
    raw = {**named, **{name: str(value) for name, value in options.items()}}
    if streaming:
        return _stream(spark, StreamOptions.parse(raw))
    spark.dataSource.register(HttpTraffic)
    return spark.read.format(HttpTraffic.name()).options(**raw).load()


def _stream(spark: SparkSession, options: StreamOptions) -> DataFrame:
    spark.dataSource.register(KafkaOrdered)
    capture = options.traffic.capture(is_spread=_count_partitions(options) > 1)
    records = spark.readStream.format(KafkaOrdered.name()).options(**options.ordered).load()
    return (
        records.select("partition", "offset", "key", "value")
        .groupBy("partition")
        .applyInPandasWithState(
            _Step(capture, options.state_bytes), PACKED, STATE, "append", GroupStateTimeout.NoTimeout
        )
        .mapInArrow(_unpacked, from_arrow_schema(SCHEMA))
    )


def _count_partitions(options: StreamOptions) -> int:
    loop = LoopThread("planner")
    try:
        return loop.do(_partitions(options))
    finally:
        loop.close()


async def _partitions(options: StreamOptions) -> int:
    cluster = Cluster(options.traffic.settings)
    try:
        return len(await cluster.partitions(options.traffic.topics))
    finally:
        cluster.close()


@dataclass(frozen=True, slots=True)
class _Step:
    """What an epoch does with the records of one Kafka partition."""

    capture: Capture
    state_bytes: int

    def __call__(
        self, key: tuple[np.integer[Any]], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        settle()
        # Spark passes the key as a NumPy scalar, and compiled code takes nothing but an int.
        partition = int(key[0])
        if state.exists:
            [written] = state.get
            assembly = ResumableAssembly.resume(self.capture, partition, self.state_bytes, bytes(written))
        else:
            assembly = ResumableAssembly(self.capture, partition, self.state_bytes)
        for offset, key_, value in _in_order(frames):
            assembly.take(partition, offset, key_, value)
            if assembly.rows.nbytes >= BATCH_BYTES:
                yield _packed(assembly.rows.take())
        if len(assembly.rows):
            yield _packed(assembly.rows.take())
        state.update((assembly.state(),))


def _in_order(frames: Iterator[pd.DataFrame]) -> Iterable[tuple[int, bytes | None, bytes | None]]:
    """The records as they lie in the partition: a shuffle keeps no order."""
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for frame in frames:
        found.extend(zip(frame["offset"].tolist(), frame["key"], frame["value"], strict=True))
    found.sort(key=lambda record: record[0])
    return found


def _packed(batch: pa.RecordBatch) -> pd.DataFrame:
    return pd.DataFrame({PACKED_COLUMN: [batch.serialize().to_pybytes()]})


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for packed in batch.column(PACKED_COLUMN):
            yield pa.ipc.read_record_batch(packed.as_buffer(), SCHEMA)
