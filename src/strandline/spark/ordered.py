"""`kafka_ordered`: Kafka topics as a DataFrame in the order of time, batch and streaming.

The work is cut by time, not by Kafka partition: each Spark partition merges one slice of time over all partitions of
the topics, and slices follow each other. So the DataFrame is in order as it is, and no shuffle is needed.
"""

import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.core.ordering import BEFORE_ALL_TIME
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.kafka.starts import milliseconds
from strandline.kafka.words import cutoff
from strandline.ordered.epochs import Epochs, Limits, Position
from strandline.ordered.loop import LoopThread
from strandline.ordered.merge import Part, sliced
from strandline.ordered.slices import Slicer
from strandline.ordered.starts import Topic, resolve
from strandline.spark.ordered_options import RangeOptions, SourceOptions
from strandline.spark.slice import read_slice
from strandline.spark.worker import settle

ROWS_A_SLICE = 1_000_000
UNLIMITED = 2**62

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField(
            "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
        ),
        StructField("late", BooleanType()),
    ]
)

log = logging.getLogger(__name__)


@dataclass
class Slice(InputPartition):
    """What one task reads."""

    parts: Mapping[Partition, Part]
    ceiling: int
    time: int = BEFORE_ALL_TIME
    """Rows before this time are late."""


class KafkaOrdered(DataSource):
    """See `SourceOptions` for the options."""

    @classmethod
    def name(cls) -> str:
        return "kafka_ordered"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> "OrderedReader":  # noqa: ARG002  (Spark's signature)
        return OrderedReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "OrderedStreamReader":  # noqa: ARG002, N802  (Spark's)
        return OrderedStreamReader(SourceOptions.parse(self.options).for_stream())


class OrderedReader(DataSourceReader):
    """A range of the log, cut into slices."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the range; called once a query, where Spark plans it."""
        return planned(self._plan())

    async def _plan(self) -> list[InputPartition]:
        options = self._options
        now = datetime.now(UTC)
        ceiling = milliseconds(now + options.max_ahead)
        cluster = Cluster(options.settings)
        try:
            parts = await range_parts(cluster, options, now, ceiling)
            return await _slices(Slicer(cluster, parts, options.rules, ceiling), parts, options, ceiling)
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Merge one slice; called by a task."""
        return _read(partition, self._options)


class OrderedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Epochs of the log, each cut into slices.

    Spark makes it in one process, copies it to others, and keeps one that plans for the life of the query. So nothing
    is opened before it is asked something.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner: _Planner | None = None
        self._ends: dict[Partition, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_planner": None, "_ends": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name, as those below)
        """Where a new query starts."""
        return _written(self._plans().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of the options; Spark knows one kind at a time, and we apply all of them."""
        limits = self._options.limits
        return ReadAllAvailable() if limits == Limits() else ReadMaxRows(limits.rows or UNLIMITED)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next epoch goes."""
        limits = Limits() if isinstance(limit, ReadAllAvailable) else self._options.limits
        before = _read_back(start)
        end = self._plans().next(before, limits, self._ends)
        return start if end == before else _written(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember how far the log goes now."""
        self._ends = self._plans().ends()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of every partition, for the progress of the query."""
        return {"offsets": _by_topic(self._plans().ends())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut an epoch into slices."""
        return self._plans().slices(_read_back(start), _read_back(end))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Merge one slice; called by a task."""
        return _read(partition, self._options)

    def stop(self) -> None:
        """Close the connections of the planning."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _plans(self) -> "_Planner":
        self._planner = self._planner or _Planner(self._options)
        return self._planner


class _Planner:
    """The planning of a stream, with connections that stay open."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = Cluster(options.settings)
        self._loop = LoopThread("planner")
        self._epochs = Epochs(self._cluster, list(options.topics), options.rules)

    def initial(self) -> Position:
        options = self._options
        topics = [Topic(name, options.start) for name in options.topics]
        now = datetime.now(UTC)
        ceiling = milliseconds(now + options.max_ahead)
        ranges = self._loop.do(resolve(self._cluster, topics, options.rules, now=now, ceiling=ceiling))
        return Position(offsets={partition: range_.start for partition, range_ in ranges.items()})

    def ends(self) -> dict[Partition, int]:
        return self._loop.do(self._epochs.ends())

    def next(self, start: Position, limits: Limits, ends: Mapping[Partition, int] | None) -> Position:
        ceiling = milliseconds(datetime.now(UTC) + self._options.max_ahead)
        return self._loop.do(self._epochs.next(start, limits, ceiling, ends))

    def slices(self, start: Position, end: Position) -> list[InputPartition]:
        return self._loop.do(self._slices(start, end))

    async def _slices(self, start: Position, end: Position) -> list[InputPartition]:
        parts, losses = await self._epochs.parts(start, end)
        for loss in losses:
            log.warning("%s", loss)
        return await _slices(self._epochs.slicer(parts, end.ceiling), parts, self._options, end.ceiling, start.time)

    def close(self) -> None:
        self._loop.do(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._cluster.close()


def planned(plan: Coroutine[Any, Any, list[InputPartition]]) -> list[InputPartition]:
    """What a batch is cut into, by a loop that is there for nothing else."""
    settle()
    loop = LoopThread("planner")
    try:
        return loop.do(plan)
    finally:
        loop.close()


async def range_parts(cluster: Cluster, options: RangeOptions, now: datetime, ceiling: int) -> dict[Partition, Part]:
    """What a batch query reads of each partition."""
    topics = [Topic(name, options.start) for name in options.topics]
    ranges = await resolve(cluster, topics, options.rules, now=now, ceiling=ceiling)
    parts = {partition: Part(start=range_.start, end=range_.end) for partition, range_ in ranges.items()}
    end = None if options.end is None else cutoff(options.end, now)
    if end is None:
        return parts
    firsts = await Slicer(cluster, parts, options.rules, ceiling).firsts(milliseconds(end))
    return {partition: Part(start=part.start, end=firsts[partition]) for partition, part in parts.items()}


async def _slices(
    slicer: Slicer,
    parts: Mapping[Partition, Part],
    options: SourceOptions,
    ceiling: int,
    time: int = BEFORE_ALL_TIME,
) -> list[InputPartition]:
    count = options.slices or max(1, slicer.rows // ROWS_A_SLICE)
    return [Slice(slice_, ceiling, time) for slice_ in sliced(parts, await slicer.cut(count))]


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[Any]:
    # Where there is nothing to read, Spark makes a partition of its own.
    if isinstance(partition, Slice):
        settle()
        yield from read_slice(partition.parts, partition.ceiling, partition.time, options)


def _written(position: Position) -> dict[str, Any]:
    """A position as Spark keeps it, in its checkpoint."""
    times = {} if position.time == BEFORE_ALL_TIME else {"time": position.time}
    return {
        "offsets": _by_topic(position.offsets),
        "reached": _by_topic(position.reached),
        "begins": _by_topic(position.begins),
        "ceiling": position.ceiling,
        **times,
    }


def _read_back(written: dict[str, Any]) -> Position:
    return Position(
        offsets=_by_partition(written["offsets"]),
        reached=_by_partition(written["reached"]),
        begins=_by_partition(written["begins"]),
        ceiling=written["ceiling"],
        time=written.get("time", BEFORE_ALL_TIME),
    )


def _by_topic(numbers: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for partition, number in sorted(numbers.items()):
        found.setdefault(partition.topic, {})[str(partition.number)] = number
    return found


def _by_partition(written: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    return {Partition(topic, int(n)): value for topic, numbers in written.items() for n, value in numbers.items()}
