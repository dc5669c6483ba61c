"""The consumer for everybody else: the same, on an event loop of its own in a thread."""

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from threading import Lock
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

    See `strandline.ordered.consumer` for what is promised. Threads that poll at a time take turns: each row comes once,
    to one of them. Rows of a poll that a signal interrupts do not count as returned, and come with the next one.
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
        self._turn = Lock()
        self._loop = LoopThread("consumer")
        self._forgotten = weakref.finalize(self, _forget, self._loop, self._consumer)
        self._forgotten.atexit = False
        try:
            self._loop.do(self._consumer.start())
        except BaseException:
            self.close()
            raise

    def poll(self, timeout: float = POLL_WITHIN) -> pa.RecordBatch:
        """The next rows in order as soon as there are any, at most `batch_rows`; none when the time is out."""
        with self._turn:
            batch = self._loop.do(self._consumer.offer(timeout))
            # Here, where a signal is heard, and not in the loop's thread: before this line the caller does not have it.
            self._consumer.accept()
            return batch

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
            self._forgotten.detach()
            self._loop.do(self._consumer.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _forget(loop: LoopThread, consumer: AsyncOrderedConsumer) -> None:
    """Close a consumer that nobody has any more, and that nobody has closed."""
    loop.end_with(consumer.close())
    warnings.warn("an OrderedConsumer was not closed", ResourceWarning, stacklevel=2)


async def _later(act: Callable[[], T]) -> T:
    """Do it on the loop, between two steps of the reading."""
    return act()
