"""The sink `kinesis`: rows of changes to a stream, in order per key, each at least once.

A task that is run again sends its rows again, with the same ids. With a lease, each task claims it for its batch before
it sends, and asks it before every request: a task of an earlier leader, batch or attempt sends nothing more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from strandline.cdc.fence import Fence
from strandline.cdc.kinesis import Sender
from strandline.cdc.sending import Sent
from strandline.errors import OptionError
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.worker import settle

COLUMNS = ("lsn", "ordinal", "partition_key", "event")
BATCH_ID = "streaming.sql.batchId"


class Kinesis(DataSource):
    """Takes rows as `postgres_wal` gives them."""

    @classmethod
    def name(cls) -> str:
        return "kinesis"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802
        return StreamWriter(self._checked(schema, overwrite=overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(self._checked(schema, overwrite=overwrite))

    def _checked(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise OptionError("a stream of Kinesis cannot be overwritten: mode is 'append'")
        if missing := [name for name in COLUMNS if name not in schema.names]:
            raise OptionError(f"kinesis is given no column '{missing[0]}'; it takes rows as postgres_wal gives them")
        return SinkOptions.parse(self.options)


@dataclass
class Delivered(WriterCommitMessage):
    """What became of the rows of a task."""

    sent: Sent


class BatchWriter(DataSourceArrowWriter):
    """Sends the rows of each task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Delivered(deliver(iterator, self._options))


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each task of an epoch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Delivered(deliver(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The epoch is delivered; Spark notes it."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The epoch is not; it is sent again whole, with the same ids."""


def deliver(rows: Iterator[pa.RecordBatch], options: SinkOptions) -> Sent:
    """Send the rows of a task; returns when each is accepted by the stream or safe elsewhere."""
    settle()
    sender, lease = sender_of(options), options.lease
    if lease is None:
        return sender.send(in_order(rows), leadership=None, fence=lambda: None)
    context = TaskContext.get()
    if context is None:
        raise OptionError("a lease is claimed by tasks of Spark only")
    if context.partitionId():
        raise OptionError("kinesis with a lease takes one partition: put .coalesce(1) before it")
    batch = int(context.getLocalProperty(BATCH_ID) or 0)
    with Fence(lease.dsn, lease.name, lease.leadership, batch, context.taskAttemptId()) as fence:
        return sender.send(in_order(rows), leadership=lease.leadership, fence=fence)


@cache
def sender_of(options: SinkOptions) -> Sender:
    """One for the life of the worker's process: connections and credentials last from epoch to epoch."""
    return Sender(
        options.stream,
        dead_letters=options.dead_letters(),
        options=options.sending,
        region=options.region,
        endpoint_url=options.endpoint_url,
    )


def in_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, as they are. Raises OptionError where ids do not rise: the order of a key would be lost."""
    last = (-1, -1)
    for batch in batches:
        if batch.num_rows:
            ids = [batch.column(name) for name in ("lsn", "ordinal")]
            firsts, ends = [(ids[0][at].as_py(), ids[1][at].as_py()) for at in (0, -1)]
            if firsts <= last or not _rises(*ids):
                raise OptionError("kinesis is given rows out of order: they must rise by lsn and ordinal")
            last = ends
            yield batch


def _rises(lsns: pa.Array, ordinals: pa.Array) -> bool:
    earlier, later = lsns[:-1], lsns[1:]
    same = pc.and_(pc.equal(earlier, later), pc.less(ordinals[:-1], ordinals[1:]))
    return bool(pc.all(pc.or_(pc.less(earlier, later), same), min_count=0).as_py())
