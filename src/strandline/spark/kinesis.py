"""The sink `kinesis`: rows of changes to a stream, in order per key, each at least once.

A task that is run again sends its rows again, with the same ids. With a lease, each task claims it for its batch before
it sends, and asks it before every request: a task of an earlier leader, batch or attempt sends nothing more.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from strandline.cdc.figures import Figures, summed, tell
from strandline.cdc.kinesis import Sender
from strandline.cdc.sending import FOREVER, Sent
from strandline.errors import OptionError
from strandline.spark.kinesis_options import SinkOptions
from strandline.spark.supervised import stay_supervised
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
    committed: datetime | None
    """When the last of them was committed."""


class BatchWriter(DataSourceArrowWriter):
    """Sends the rows of each task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(iterator, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each task of an epoch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return deliver(iterator, self._options)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The epoch is delivered; Spark notes it. Whoever watches is told."""
        stay_supervised(self._options.frozen_after)
        if self._options.figures is not None:
            told = [message for message in messages if isinstance(message, Delivered)]
            tell(self._options.figures, figures_of(batchId, told))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The epoch is not; it is sent again whole, with the same ids."""


def figures_of(epoch: int, told: Sequence[Delivered]) -> Figures:
    """The figures of an epoch, of those of its tasks."""
    newest = max((each.committed for each in told if each.committed is not None), default=None)
    delay = None if newest is None else (datetime.now(UTC) - newest).total_seconds()
    return summed(epoch, [each.sent for each in told], delay_s=delay)


def deliver(rows: Iterator[pa.RecordBatch], options: SinkOptions) -> Delivered:
    """Send the rows of a task; returns when each is accepted by the stream or safe elsewhere."""
    settle()
    stay_supervised(options.frozen_after)
    sender, lease, passed = sender_of(options), options.lease, Passed(rows)
    if lease is None:
        return Delivered(sender.send(in_order(passed), leadership=None, fence=lambda: FOREVER), passed.committed())
    context = TaskContext.get()
    if context is None:
        raise OptionError("a lease is claimed by tasks of Spark only")
    if context.partitionId():
        raise OptionError("kinesis with a lease takes one partition: put .coalesce(1) before it")
    batch = int(context.getLocalProperty(BATCH_ID) or 0)
    with Fence(lease.dsn, lease.name, lease.leadership, batch, context.taskAttemptId()) as fence:
        sent = sender.send(in_order(passed), leadership=lease.leadership, fence=fence)
    return Delivered(sent, passed.committed())


class Passed:
    """Batches as they are; keeps the last of them that holds rows."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._last: pa.RecordBatch | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.num_rows:
                self._last = batch
            yield batch

    def committed(self) -> datetime | None:
        """When the last row was committed, where rows tell it."""
        if self._last is None or "committed" not in self._last.schema.names:
            return None
        found: datetime | None = self._last.column("committed")[-1].as_py()
        return found


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


def in_order(batches: Iterable[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
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
