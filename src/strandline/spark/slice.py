"""One slice, merged by one task and given to Spark as Arrow batches of the types that Spark takes."""

from collections.abc import AsyncGenerator, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.clock import SystemClock
from strandline.core.ordering import effective_times
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.ordered.loop import LoopThread
from strandline.ordered.merge import Merge, Part
from strandline.spark.ordered_options import RangeOptions, SourceOptions

BATCH_ROWS = 100_000
POLL_WITHIN = 1.0
# The last that 63 bits of microseconds hold, in the year 294247.
LAST_MILLISECOND = (2**63 - 1) // 1000

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.field("element", HEADER))),
        ("late", pa.bool_()),
    ]
)


def read_slice(
    parts: Mapping[Partition, Part], ceiling: int, time: int, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a slice in order. Those whose effective time is before `time` are late."""
    late = _Late(parts, ceiling, time)
    for batch in merged(parts, ceiling, options):
        yield for_spark(batch, late.of(batch))


def merged(parts: Mapping[Partition, Part], ceiling: int, options: RangeOptions) -> Iterator[pa.RecordBatch]:
    """The rows of some parts of a log in order, as `Gather` makes them."""
    batches = _batches(parts, ceiling, options)
    loop = LoopThread("slice")
    try:
        while (batch := loop.do(anext(batches, None))) is not None:
            yield batch
    finally:
        loop.do(batches.aclose())
        loop.close()


async def _batches(
    parts: Mapping[Partition, Part], ceiling: int, options: RangeOptions
) -> AsyncGenerator[pa.RecordBatch, None]:
    cluster = Cluster(options.settings)
    try:
        await cluster.partitions({partition.topic for partition in parts})
        clock = SystemClock()
        merge = Merge(cluster, parts, options.rules, clock, ceiling=ceiling, buffer_bytes=options.buffer_bytes)
        try:
            while not merge.is_drained:
                batch = await merge.poll(BATCH_ROWS, POLL_WITHIN)
                if batch.num_rows:
                    yield batch
        finally:
            await merge.close()
    finally:
        cluster.close()


def for_spark(batch: pa.RecordBatch, late: pa.Array) -> pa.RecordBatch:
    """The same rows in Spark's types: plain strings, microseconds, and null for times that those cannot hold."""
    columns = [
        batch.column("key"),
        batch.column("value"),
        batch.column("topic").dictionary_decode(),
        batch.column("partition"),
        batch.column("offset"),
        _microseconds(batch.column("timestamp")),
        batch.column("headers").cast(ARROW.field("headers").type),
        late,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _microseconds(stamps: pa.TimestampArray) -> pa.TimestampArray:
    wanted = ARROW.field("timestamp").type
    try:
        return stamps.cast(wanted)
    except pa.ArrowInvalid:  # which is rare, and so not looked for in every batch
        is_held = pc.less_equal(stamps.cast(pa.int64()), LAST_MILLISECOND)
        return pc.if_else(is_held, stamps, pa.scalar(None, stamps.type)).cast(wanted)


class _Late:
    """Tells which rows come after their time has passed."""

    def __init__(self, parts: Mapping[Partition, Part], ceiling: int, time: int) -> None:
        self._reached = {partition: part.reached for partition, part in parts.items()}
        self._ceiling = ceiling
        self._time = time

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """One truth a row."""
        late = np.zeros(batch.num_rows, dtype=np.bool_)
        behind = [partition for partition, reached in self._reached.items() if reached < self._time]
        if behind:
            numbers = batch.column("partition").to_numpy()
            topics = batch.column("topic")
            topic_numbers = topics.indices.to_numpy()
            stamps = batch.column("timestamp").cast(pa.int64()).fill_null(-1).to_numpy()
            names = topics.dictionary.to_pylist()
            for partition in behind:
                mine = (numbers == partition.number) & (topic_numbers == names.index(partition.topic))
                if mine.any():
                    times = effective_times(stamps[mine], self._reached[partition], self._ceiling)
                    late[mine] = times < self._time
                    self._reached[partition] = int(times[-1])
        bits = pa.py_buffer(np.packbits(late, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), batch.num_rows, [None, bits])
