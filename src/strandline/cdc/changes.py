"""The changes of a slot as rows, made ready by a thread while those before them are being delivered.

What waits is bounded by bytes. While there is no room the thread stands still, and with it the connection and, at last,
the server's sender.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from strandline.cdc.assembly import Assembly, Batch, Offset
from strandline.cdc.replication import Replication, ReplicationSettings
from strandline.cdc.rows import SCHEMA, rows
from strandline.cdc.spill import MAX_DISK, Spill
from strandline.clock import SystemClock
from strandline.core.coming import Coming
from strandline.errors import PostgresUnreachable
from strandline.units import nanos
from strandline.wire.change import Events
from strandline.wire.event import EventFormat

LOOK_EVERY = 0.2
CLOSE_WITHIN = 10.0
REREAD_WITHIN = timedelta(seconds=120)
"""For the next rows of an epoch that is read again, while the server does not come nearer to them: they are in the log,
so they come, or something is wrong."""

clock = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSettings:
    """What is read, how it is told, and how much of it at once."""

    replication: ReplicationSettings
    events: EventFormat
    markers: bool = False
    columns: Sequence[str] = tuple(SCHEMA.names)
    max_rows: int = 50_000
    max_bytes: int = 32 << 20
    spill_directory: Path | None = None
    """Where transactions that are sent while they run are kept beyond what memory takes."""
    max_spill_bytes: int = MAX_DISK


class Taken(NamedTuple):
    """Rows, and the offset behind them."""

    batches: list[pa.RecordBatch]
    reached: Offset
    committed: int | None
    """When the last of them was committed; None where all are messages outside any transaction."""


class _Ready(NamedTuple):
    batch: pa.RecordBatch
    rows: int
    bytes: int
    reached: Offset
    committed: int | None


class Changes:
    """Reads a slot from an offset on, and with `stop` up to another. Takes the slot when it is made."""

    def __init__(self, settings: ChangeSettings, start: Offset, stop: Offset | None = None) -> None:
        self._settings = settings
        self._stop = stop or Offset()
        self._replication = Replication(settings.replication)
        self._assembly = Assembly(
            Events(settings.events),
            start,
            max_rows=settings.max_rows,
            max_bytes=settings.max_bytes,
            stop=stop,
            markers=settings.markers,
            spill=Spill(max_disk=settings.max_spill_bytes, directory=settings.spill_directory),
        )
        self._ready: deque[_Ready] = deque()
        self._bytes = 0
        self._idle_at: int | None = None
        self._is_over = False
        self._failure: Exception | None = None
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="strandline-changes", daemon=True)
        self._replication.start(start.end)
        self._thread.start()

    def take(self, timeout: float) -> Taken | None:
        """Rows of whole transactions, as many as go in an epoch; None when none came in time."""
        most_rows, most_bytes = self._settings.max_rows, self._settings.max_bytes
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure or self._is_over, timeout)
            if not self._ready:
                if self._failure is not None:
                    raise self._failure
                return None
            found = [self._ready.popleft()]
            count, size = found[0].rows, found[0].bytes
            while self._ready and (
                count + self._ready[0].rows <= most_rows and size + self._ready[0].bytes <= most_bytes
            ):
                found.append(self._ready.popleft())
                count, size = count + found[-1].rows, size + found[-1].bytes
            self._bytes -= size
            self._changed.notify_all()
        committed = [ready.committed for ready in found if ready.committed is not None]
        return Taken([ready.batch for ready in found], found[-1].reached, committed[-1] if committed else None)

    def all(self) -> Iterator[pa.RecordBatch]:
        """All rows up to `stop`."""
        coming = Coming(max(self._stop.end, self._stop.lsn), nanos(REREAD_WITHIN), clock.monotonic())
        while True:
            taken = self.take(LOOK_EVERY)
            if taken is not None:
                yield from taken.batches
                coming.came(clock.monotonic())
            elif self._is_given():
                return
            elif not coming.look(self._replication.place, clock.monotonic()):
                waited = f"{REREAD_WITHIN.total_seconds():g} s"
                raise PostgresUnreachable("the slot", f"rows that were read before did not come within {waited}")

    def _is_given(self) -> bool:
        """Whether all up to `stop` was made ready and taken: the last of it may have come since it was looked for."""
        with self._changed:
            return self._is_over and not self._ready

    def idle_at(self) -> int | None:
        """How far the server is, when all that it has sent is taken; else None."""
        with self._changed:
            return None if self._ready else self._idle_at

    def acknowledge(self, end: int) -> None:
        """All transactions that end up to here are delivered."""
        self._replication.acknowledge(end)

    def close(self) -> None:
        """Give the slot back."""
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join(CLOSE_WITHIN)
        self._replication.close()
        self._assembly.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() or self._assembly.done):
                frames = self._replication.take(LOOK_EVERY)
                self._assembly.feed(frames)
                while not self._closing.is_set() and (batch := self._assembly.batch()) is not None:
                    self._put(self._made(batch))
                if not frames:
                    self._look_idle()
        except Exception as error:  # noqa: BLE001  (raised where rows are taken)
            self._failure = error
        finally:
            with self._changed:
                self._is_over = self._assembly.done
                self._changed.notify_all()

    def _made(self, batch: Batch) -> _Ready:
        committed = [part.stamp.committed for part in batch.parts if part.stamp.committed is not None]
        return _Ready(
            rows(batch.parts, self._settings.columns),
            batch.rows,
            batch.size,
            batch.reached,
            committed[-1] if committed else None,
        )

    def _put(self, ready: _Ready) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing.is_set() or self._bytes < self._settings.max_bytes)
            self._ready.append(ready)
            self._bytes += ready.bytes
            self._idle_at = None
            self._changed.notify_all()

    def _look_idle(self) -> None:
        position = self._replication.idle_at
        with self._changed:
            self._idle_at = position if position is not None and self._assembly.is_idle else None
