"""What Spark does with the source and the sink, in small: epochs that are planned, noted, delivered and noted as done.

Without Spark it can be ended at any step, hundreds of times in a test.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from strandline.cdc.kinesis import Sender
from strandline.cdc.sending import FOREVER, Fence
from strandline.spark.kinesis import in_order
from strandline.spark.postgres_wal import WalReader
from strandline.units import Nanos

STEPS = ("read", "noted", "sending", "sent", "done")


class Reach(Protocol):
    """Is told of a step, and may raise."""

    def __call__(self, step: str, has_events: bool) -> None: ...


class Crash(Exception):
    """The process is gone."""


@dataclass
class Checkpoint:
    """What is left of a query that has ended."""

    planned: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0

    def plan(self, end: dict[str, Any]) -> None:
        """The next epoch ends here."""
        self.planned.append(end)

    def finish(self) -> None:
        """It is delivered."""
        self.done += 1


class Query:
    """One life of a query. `reach` is called at each step, and before each request; it may raise.

    It is told the step, and whether the epoch has events: one that only moves the slot on has none.
    """

    def __init__(
        self,
        make: Callable[[], WalReader],
        sender: Sender,
        checkpoint: Checkpoint,
        *,
        leadership: int = 1,
        reach: Reach = lambda step, has_events: None,
        fenced: Callable[[int], AbstractContextManager[Fence]] = lambda epoch: nullcontext(lambda: FOREVER),
        altered: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = lambda rows: rows,
    ) -> None:
        self.reader = make()
        self._make = make
        self._sender = sender
        self._checkpoint = checkpoint
        self._leadership = leadership
        self._reach = reach
        self._fenced = fenced
        self._altered = altered

    def epoch(self) -> bool:
        """One epoch: that which was noted and not done, or a new one; whether there was any."""
        done, planned = self._checkpoint.done, self._checkpoint.planned
        start = planned[done - 1] if done else self.reader.initialOffset()
        if len(planned) == done:
            end = self.reader.latestOffset(start, ReadAllAvailable())
            self._reach("read", _has_events(start, end))
            if end == start:
                return False
            if done:
                self.reader.commit(start)
            self._checkpoint.plan(end)
        end = planned[done]
        reach = partial(self._reach, has_events=_has_events(start, end))
        reach("noted")
        with self._fenced(done) as fence:

            def may_send() -> Nanos:
                reach("sending")
                return fence()

            rows = in_order(self._altered(self._rows(start, end)))
            with closing(rows):
                # Whoever reads rows has ended when it fails.
                self._sender.send(rows, leadership=self._leadership, fence=may_send)
        reach("sent")
        self._checkpoint.finish()
        reach("done")
        return True

    def _rows(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """As tasks read them, who have readers of their own."""
        for partition in self.reader.partitions(start, end):
            yield from self._make().read(pickle.loads(pickle.dumps(partition)))  # noqa: S301  (our own)


def _has_events(start: dict[str, Any], end: dict[str, Any]) -> bool:
    return any(start[name] != end[name] for name in ("lsn", "ordinal"))
