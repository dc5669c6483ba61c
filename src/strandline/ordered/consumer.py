"""The consumer for asyncio: rows of all partitions in order, as Arrow batches.

What is promised, for everything that is on the brokers when it starts (up to each partition's end, which under
`read_committed` is the last stable offset):

- rows of a partition come in the order of their offsets;
- across partitions effective times never go back (see `core/ordering.py`);
- every record comes exactly once; what the brokers delete or have damaged under the reader is named in `losses`.

After that (`is_live`), rows are still merged by time, but none waits longer than `idle_after` for a silent partition.
Partitions that are added to the topics are found within seconds then, and read from their first offset on.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from numbers import Real
from types import TracebackType
from typing import Literal, Self

import pyarrow as pa

from strandline.clock import Clock, SystemClock
from strandline.core.ordering import END_OF_TIME, Ordering
from strandline.errors import BrokerUnreachable, Moved, OffsetOutOfRange, OptionError, check_type, did_you_mean
from strandline.kafka.cluster import EARLIEST, ISOLATIONS, PATIENCE, Cluster, refuse_unused
from strandline.kafka.offsets import GroupOffsets
from strandline.kafka.partition import Partition
from strandline.kafka.starts import LONGEST_AGO, is_a, milliseconds, refuse_twice
from strandline.ordered.merge import Merge, Part, check_buffer
from strandline.ordered.reading import Loss, Rules
from strandline.ordered.starts import Range, Topic, resolve
from strandline.units import nanos

POLL_WITHIN = 1.0
# How soon a partition that is added is found.
LOOK_EVERY = 5.0
LONGEST_POLL = timedelta(days=1).total_seconds()

log = logging.getLogger(__name__)

PARTITIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("position", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("state", pa.string()),
        ("held_rows", pa.int64()),
        ("held_bytes", pa.int64()),
        ("paused", pa.bool_()),
    ]
)


class AsyncOrderedConsumer:
    """Use it as a context manager, or call `start` and `close`.

    Several polls at a time take turns: each row comes once, to one of them.
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[Topic],
        *,
        cutoff: datetime | None = None,
        batch_rows: int = 100_000,
        buffer_bytes: int = 256 << 20,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        idle_after: timedelta = timedelta(milliseconds=500),
        max_ahead: timedelta = timedelta(hours=1),
        on_corrupt: Literal["error", "skip"] = "error",
        on_missing: Literal["earliest", "error"] = "earliest",
        start_within: timedelta = PATIENCE,
        clock: Clock | None = None,
    ) -> None:
        if not topics:
            raise OptionError("no topic to read")
        if is_a(topics, str) or not is_a(topics, Sequence) or not all(is_a(topic, Topic) for topic in topics):
            raise OptionError(f"topics are a list such as [Topic('events', Earliest())], not {topics!r}")
        if not is_a(settings, Mapping):
            raise OptionError("settings are a mapping such as {'bootstrap.servers': '127.0.0.1:9092'}")
        check_type("batch_rows", batch_rows, int)
        check_type("buffer_bytes", buffer_bytes, int)
        if cutoff is not None:
            check_type("cutoff", cutoff, datetime)
        if batch_rows < 1:
            raise OptionError(f"batch_rows is {batch_rows}; a batch has at least one row")
        check_buffer(buffer_bytes)
        if cutoff is not None and cutoff.tzinfo is None:
            raise OptionError(f"cutoff {cutoff} has no time zone; give it one, such as datetime.UTC")
        for name, value, valid in (
            ("isolation", isolation, ISOLATIONS),
            ("on_corrupt", on_corrupt, ("error", "skip")),
            ("on_missing", on_missing, ("earliest", "error")),
        ):
            if value not in valid:
                raise OptionError(f"{name} is '{value}'; {did_you_mean(str(value), valid)}")
        for name, span in (("idle_after", idle_after), ("max_ahead", max_ahead), ("start_within", start_within)):
            check_type(name, span, timedelta)
            if not timedelta(0) <= span <= LONGEST_AGO:
                raise OptionError(f"{name} is {span}; it takes 0 to {LONGEST_AGO.days} days")
        refuse_twice(topic.name for topic in topics)
        self._settings = dict(settings)
        self._topics = list(topics)
        self._cutoff = END_OF_TIME if cutoff is None else milliseconds(cutoff)
        self._batch_rows = batch_rows
        self._buffer_bytes = buffer_bytes
        self._idle_after = idle_after
        self._max_ahead = max_ahead
        self._start_within = start_within
        self._rules = Rules(ISOLATIONS[isolation], on_corrupt == "skip", on_missing == "earliest")
        self._clock = clock or SystemClock()
        self._cluster = Cluster(self._settings)
        self._group = GroupOffsets(self._settings) if "group.id" in self._settings else None
        if self._group is None:
            refuse_unused(self._settings)
        self._turn = asyncio.Lock()
        self._merge: Merge | None = None
        self._ranges: dict[Partition, Range]

    async def start(self) -> Self:
        """Find every partition, its range and its leader, and begin to read."""
        now = self._now()
        self._cluster.patience = self._start_within
        ceiling = milliseconds(now + self._max_ahead)
        self._ranges = await resolve(self._cluster, self._topics, self._rules, self._group, now=now, ceiling=ceiling)
        self._cluster.patience = PATIENCE
        for partition, range_ in self._ranges.items():
            if range_.start < range_.earliest and not self._rules.skip_missing:
                raise OffsetOutOfRange(partition, asked=range_.start, earliest=range_.earliest, latest=range_.end)
        self._merge = Merge(
            self._cluster,
            {partition: Part(start=range_.start, end=range_.end) for partition, range_ in self._ranges.items()},
            self._rules,
            self._clock,
            ceiling=ceiling,
            buffer_bytes=self._buffer_bytes,
            cutoff=self._cutoff,
            idle_after=nanos(self._idle_after),
        )
        return self

    async def poll(self, timeout: float = POLL_WITHIN) -> pa.RecordBatch:
        """The next rows in order as soon as there are any, at most `batch_rows`; none when the time is out."""
        async with self._turn:
            batch = await self._offer(timeout)
            self.accept()
            return batch

    async def offer(self, timeout: float = POLL_WITHIN) -> pa.RecordBatch:
        """What `poll` returns, for a thread that may be interrupted on its way to it.

        The rows count as returned once `accept` is called; until then the same are offered again.
        """
        async with self._turn:
            return await self._offer(timeout)

    def accept(self) -> None:
        """Count the rows that were offered as returned."""
        self._running().accept()

    async def _offer(self, timeout: float) -> pa.RecordBatch:
        if not is_a(timeout, Real) or not 0 <= timeout <= LONGEST_POLL:
            raise OptionError(f"poll takes 0 to {LONGEST_POLL:,.0f} seconds, not {timeout!r}")
        merge = self._running()
        if merge.is_drained and not merge.ordering.is_endless:
            merge.read_beyond_ends()
            merge.reading.run("watch", self._watch(merge))
        if merge.ordering.is_endless:
            # What is too far ahead is judged by the start for what was there then, and by the clock from then on.
            merge.ordering.ceiling = milliseconds(self._now() + self._max_ahead)
        return await merge.offer(self._batch_rows, timeout)

    async def _watch(self, merge: Merge) -> None:
        """Take partitions that are added to the topics, each from its first offset on."""
        while True:
            try:
                found = await self._cluster.partitions([topic.name for topic in self._topics])
                added = [partition for partition in found if partition not in self._ranges]
                firsts = await self._cluster.offsets(dict.fromkeys(added, EARLIEST), self._rules.isolation)
            except (BrokerUnreachable, Moved) as error:
                log.debug("%s", error)  # whoever reads from there has told it
            else:
                for partition, first in firsts.items():
                    log.info("%s was added; it is read from offset %d on", partition, first.offset)
                    self._ranges[partition] = Range(first.offset, first.offset, first.offset)
                    merge.add(partition, first.offset)
            await asyncio.sleep(LOOK_EVERY)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall() / 1e9, UTC)

    async def until_live(self) -> AsyncIterator[pa.RecordBatch]:
        """The batches up to the moment at which all that was there at the start, or the cutoff, has been returned."""
        while not self.is_live:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        while True:
            batch = await self.poll()
            if batch.num_rows:
                yield batch

    @property
    def is_live(self) -> bool:
        """Whether `poll` has returned every row up to each partition's end at the start, or up to the cutoff."""
        return self._running().is_live

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What could not be read: deleted by the brokers before we came to it, or corrupt."""
        return tuple(self._running().reading.losses)

    def positions(self) -> dict[Partition, int]:
        """By partition, the offset behind all that `poll` has returned."""
        return self._running().positions()

    def partitions(self) -> pa.Table:
        """How far each partition is, one row a partition."""
        merge = self._running()
        ordering = merge.ordering
        rows = []
        for partition, range_ in self._ranges.items():
            held_rows, held_bytes = ordering.held(partition)
            rows.append(
                {
                    "topic": partition.topic,
                    "partition": partition.number,
                    "start": range_.start,
                    "end": range_.end,
                    "position": ordering.position(partition),
                    "timestamp": ordering.reached(partition),
                    "state": _state(ordering, partition, range_),
                    "held_rows": held_rows,
                    "held_bytes": held_bytes,
                    "paused": ordering.position(partition) < range_.end and not merge.reading.wants(partition),
                }
            )
        return pa.Table.from_pylist(rows, schema=PARTITIONS)

    async def commit(self) -> None:
        """Commit the offsets of all that `poll` has returned, for the group of the settings."""
        if self._group is None:
            raise OptionError("commit() needs the setting 'group.id'")
        await self._group.commit(self.positions())

    async def close(self) -> None:
        """Stop reading and close every connection. What was not committed is read again the next time."""
        if self._merge is not None:
            await self._merge.close()
        self._cluster.close()
        if self._group is not None:
            await self._group.close()
            self._group = None

    def _running(self) -> Merge:
        if self._merge is None:
            raise OptionError("the consumer has not been started: use it as a context manager")
        return self._merge

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _state(ordering: Ordering[Partition], partition: Partition, range_: Range) -> str:
    if ordering.is_live:
        return "live"
    if ordering.position(partition) >= range_.end:
        return "caught up"
    return "unknown" if ordering.reached(partition) is None else "behind"
