"""The consumer for everybody else: the same, on an event loop of its own in a thread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Literal, Self, TypeVar

import pyarrow as pa

from strandline.errors import OptionError
from strandline.kafka.cluster import PATIENCE
from strandline.kafka.partition import Partition
from strandline.ordered.consumer import POLL_WITHIN, AsyncOrderedConsumer
from strandline.ordered.loop import LoopThread
from strandline.ordered.reading import Loss
from strandline.ordered.starts import Topic

T = TypeVar("T")


class OrderedConsumer:
    """Reads as soon as it is made; close it, or use it as a context manager.

    See `strandline.ordered.consumer` for what is promised. To be used by one thread at a time.
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
    ) -> None:
        self._consumer = AsyncOrderedConsumer(
            settings,
            topics,
            cutoff=cutoff,
            batch_rows=batch_rows,
            buffer_bytes=buffer_bytes,
            isolation=isolation,
            idle_after=idle_after,
            max_ahead=max_ahead,
            on_corrupt=on_corrupt,
            on_missing=on_missing,
            start_within=start_within,
        )
        self._loop = LoopThread("consumer")
        try:
            self._loop.do(self._consumer.start())
        except BaseException:
            self.close()
            raise

    def poll(self, timeout: float = POLL_WITHIN) -> pa.RecordBatch:
        """The next rows in order as soon as there are any, at most `batch_rows`; none when the time is out."""
        return self._loop.do(self._consumer.poll(timeout))

    def until_live(self) -> Iterator[pa.RecordBatch]:
        """The batches up to the moment at which all that was there at the start, or the cutoff, has been returned."""
        if self._loop.is_closed:
            raise OptionError("the consumer is closed")
        while not self.is_live:
            batch = self.poll()
            if batch.num_rows:
                yield batch

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            batch = self.poll()
            if batch.num_rows:
                yield batch

    @property
    def is_live(self) -> bool:
        """Whether `poll` has returned every row up to each partition's end at the start, or up to the cutoff."""
        return self._consumer.is_live

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What could not be read: deleted by the brokers before we came to it, or corrupt."""
        return self._consumer.losses

    def positions(self) -> dict[Partition, int]:
        """By partition, the offset behind all that `poll` has returned."""
        return self._loop.do(_later(self._consumer.positions))

    def partitions(self) -> pa.Table:
        """How far each partition is, one row a partition."""
        return self._loop.do(_later(self._consumer.partitions))

    def commit(self) -> None:
        """Commit the offsets of all that `poll` has returned, for the group of the settings."""
        self._loop.do(self._consumer.commit())

    def close(self) -> None:
        """Stop reading and close every connection. What was not committed is read again the next time."""
        if not self._loop.is_closed:
            self._loop.do(self._consumer.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _later(act: Callable[[], T]) -> T:
    """Do it on the loop, between two steps of the reading."""
    return act()
