"""Messages of pgoutput to whole transactions of events, each with an id that is the same on every reading.

- An event's id is (commit LSN, ordinal in the transaction), from 1 on. It rises, and does not depend on whether the
  transaction was streamed. A message outside any transaction has (its LSN, 0).
- A batch holds whole transactions within the limits. Only a transaction that is larger alone is cut, between messages.
- `end` in an offset is the end LSN of the last *whole* transaction. It alone may be acknowledged, and reading resumes
  there; events up to (`lsn`, `ordinal`) then come again and are passed over.
- A streamed transaction is an event's matter only when it is committed. Tables that are described in it count in it
  from where they are, and outside it only if nothing newer was told meanwhile.
- Postgres tells of a streamed message (pg_logical_emit_message) the transaction, and not the subtransaction. So where a
  part of a transaction with messages is rolled back, nobody knows which of them are: RollbackUnclear is raised, and the
  transaction has to be read when it has ended, without streaming.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from struct import Struct as Layout
from typing import Final, cast

from msgspec import Struct

from strandline.cdc.slot import HEARTBEAT
from strandline.cdc.spill import Spill, Streamed
from strandline.errors import MalformedChange, RollbackUnclear
from strandline.wire.change import Events
from strandline.wire.event import Event, Stamp
from strandline.wire.pgoutput import (
    EPOCH,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    Truncate,
    Type,
    Update,
    decode,
    lsn_text,
)

CHANGES: Final = frozenset(b"IUD")
STREAM_STOP: Final = ord("E")
ORIGIN: Final = ord("O")
RELATION: Final = ord("R")
MESSAGE: Final = ord("M")
COMMIT: Final = Layout(">cBQQq")
# What an event takes beside its bytes and its key, about.
OVERHEAD: Final = 150


class Offset(Struct, frozen=True, kw_only=True):
    """How far reading has come."""

    end: int = 0
    """The end LSN of the last whole transaction."""
    lsn: int = 0
    ordinal: int = 0
    """The id of the last event."""


class Part(Struct, frozen=True):
    """Events of one transaction: all, or those between two cuts."""

    stamp: Stamp
    events: list[Event]


class Batch(Struct, frozen=True):
    """What is delivered together."""

    parts: list[Part]
    rows: int
    size: int
    reached: Offset
    """The offset behind it."""


class Assembly:
    """Frames in, batches out. `batch` works off what was fed; feed more when it gives none."""

    def __init__(
        self,
        events: Events,
        start: Offset,
        *,
        max_rows: int = 50_000,
        max_bytes: int = 32 << 20,
        stop: Offset | None = None,
        markers: bool = False,
        spill: Spill | None = None,
    ) -> None:
        """Begin behind `start`. With `stop`, the limits do not count: it is the batch that ended there, once more."""
        self._events = events
        self._start = (start.lsn, start.ordinal)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._stop = None if stop is None else (stop.lsn, stop.ordinal)
        self._stop_offset = stop
        self._markers = markers
        self._spill = spill or Spill()
        self._input: deque[bytes] = deque()
        self._inside: Streamed | None = None
        """The transaction whose stream comes just now."""
        self._replayed: Streamed | None = None
        self._replay: Iterator[bytes] | None = None
        self._replayed_relations: dict[int, tuple[int, Relation]] = {}
        self._stamp: Stamp | None = None
        """Of the transaction that is open, if any."""
        self._ordinal = 0
        self._is_done_before = False
        self._open: list[Event] = []
        self._open_size = 0
        self._ready: deque[Batch] = deque()
        self._parts: list[Part] = []
        self._rows = 0
        self._size = 0
        self._reached = self._given = start
        self._told = 0
        self._relations: dict[int, tuple[int, Relation]] = {}
        """The tables as they were described last, each with the count of when."""
        self.done = self._stop is not None and self._stop <= self._start
        """Whether the batch that ended at `stop` has been given whole."""

    def feed(self, frames: Iterable[tuple[int, int, bytes]]) -> None:
        """Frames as they come from the server. Keep their number within bounds: feed when `batch` gave none."""
        self._input.extend([frame[2] for frame in frames])

    @property
    def reached(self) -> Offset:
        """The offset behind the last batch, and behind what has brought no event since, while no batch is under way."""
        return self._given if self._ready or self._parts else self._reached

    @property
    def is_idle(self) -> bool:
        """Whether all that was fed is worked off and no transaction is half here, but for what is streamed."""
        return not (
            self._input
            or self._ready
            or self._parts
            or self._replay
            or self._stamp is not None
            or self._inside is not None
        )

    def close(self) -> None:
        """Forget what is in progress."""
        self._spill.close()
        if self._replayed is not None:
            self._replayed.close()

    def batch(self) -> Batch | None:
        """The next batch, or None when more frames are needed for one."""
        ready = self._ready
        while not ready and not self.done:
            frame = self._next()
            if frame is None:
                if self._parts:
                    self._leave()
                break
            if self._inside is not None:
                self._keep(self._inside, frame)
            elif frame[0] in CHANGES:
                self._change(frame)
            else:
                self._other(frame)
        if not ready:
            return None
        batch = ready.popleft()
        self._given = batch.reached
        return batch

    def _next(self) -> bytes | None:
        if self._replay is not None:
            frame = next(self._replay, None)
            if frame is not None:
                return frame
            self._end_replay()
        return self._input.popleft() if self._input else None

    def _change(self, frame: bytes) -> None:
        """A change of the open transaction."""
        if self._stamp is None:
            raise MalformedChange("a change stands outside any transaction")
        if not self._is_done_before:
            message = cast("Insert | Update | Delete", decode(frame, streaming=False))
            self._add(self._events.of(message, self._stamp, self._ordinal + 1), self._stamp)

    def _add(self, events: Sequence[Event], stamp: Stamp) -> None:
        """Events of the open transaction, in front of which a batch ends if they no longer fit into it."""
        if not events:
            return
        self._ordinal += len(events)
        here = (stamp.lsn, self._ordinal)
        if here <= self._start:
            return
        size = 0
        for event in events:
            size += len(event.event) + len(event.partition_key) + OVERHEAD
        if self._stop is not None:
            self._check_stop(here)
        elif not self._has_room(len(events), size):
            if self._parts:
                self._leave()
            if self._open and not self._has_room(len(events), size):
                self._cut(stamp)
        self._open += events
        self._open_size += size
        if here == self._stop:
            self.done = True
            self._cut(stamp)

    def _has_room(self, rows: int, size: int) -> bool:
        return (
            self._rows + len(self._open) + rows <= self._max_rows
            and self._size + self._open_size + size <= self._max_bytes
        )

    def _check_stop(self, here: tuple[int, int]) -> None:
        if self._stop is not None and here > self._stop:
            at, found = (f"{lsn_text(lsn)}, ordinal {ordinal}" for lsn, ordinal in (self._stop, here))
            raise MalformedChange(f"the batch that ended at {at} cannot be read again: Postgres sends {found}")

    def _leave(self) -> None:
        """The whole transactions so far are a batch."""
        self._ready.append(Batch(self._parts, self._rows, self._size, self._reached))
        self._parts, self._rows, self._size = [], 0, 0

    def _cut(self, stamp: Stamp) -> None:
        """All so far, up to the middle of a transaction, is a batch."""
        self._reached = Offset(end=self._reached.end, lsn=stamp.lsn, ordinal=self._open[-1].ordinal)
        if self.done and self._stop_offset is not None:
            self._reached = self._stop_offset
        self._parts.append(Part(stamp, self._open))
        self._rows += len(self._open)
        self._size += self._open_size
        self._open, self._open_size = [], 0
        self._leave()

    def _begin(self, stamp: Stamp) -> None:
        self._stamp = stamp
        self._ordinal = 0
        self._is_done_before = stamp.lsn < self._start[0]
        if self._markers and not self._is_done_before:
            self._add([self._events.marker("begin", stamp, 1)], stamp)

    def _commit(self, end: int) -> None:
        stamp = self._stamp
        if stamp is None:
            raise MalformedChange("a Commit stands outside any transaction")
        if self._markers and not self._is_done_before:
            self._add([self._events.marker("commit", stamp, self._ordinal + 1)], stamp)
        self._close(stamp, end)

    def _close(self, stamp: Stamp, end: int) -> None:
        """The open transaction is whole."""
        lsn, ordinal = self._reached.lsn, self._reached.ordinal
        if self._open:
            lsn, ordinal = stamp.lsn, self._open[-1].ordinal
            self._parts.append(Part(stamp, self._open))
            self._rows += len(self._open)
            self._size += self._open_size
            self._open, self._open_size = [], 0
        self._reached = Offset(end=max(end, self._reached.end), lsn=lsn, ordinal=ordinal)
        self._stamp = None

    def _other(self, frame: bytes) -> None:
        """Whatever is neither a change nor inside a stream."""
        message = decode(frame, streaming=False)
        match message:
            case Begin():
                self._begin(self._events.stamp(message.lsn, message.xid, message.committed))
            case Commit():
                self._commit(message.end)
            case Relation() | Type():
                self._learn(message)
            case Truncate() | LogicalMessage() if self._stamp is not None:
                if not self._is_done_before:
                    self._add(self._events.of(message, self._stamp, self._ordinal + 1), self._stamp)
            case LogicalMessage():
                self._stand_alone(message)
            case StreamStart():
                self._inside = self._spill.open(message.xid)
            case StreamCommit():
                self._begin_replay(message)
            case StreamAbort():
                self._abort(message)
            case Origin():
                pass
            case _:
                raise MalformedChange(f"{type(message).__name__} stands outside any transaction")

    def _stand_alone(self, message: LogicalMessage) -> None:
        """A message outside any transaction is one of its own. A heartbeat says only how far the log is."""
        stamp = self._events.stamp(message.lsn, None, None)
        if message.prefix != HEARTBEAT:
            self._ordinal = -1
            self._add(self._events.of(message, stamp, 0), stamp)
        self._close(stamp, message.lsn)

    def _learn(self, message: Relation | Type) -> None:
        """A table or type is described: from here on, or in a streamed transaction where it was."""
        self._events.learn(message)
        if isinstance(message, Relation):
            if self._replayed is not None:
                told = self._replayed.described.get(message.oid, 0)
                self._replayed_relations[message.oid] = (told, message)
            else:
                self._told += 1
                self._relations[message.oid] = (self._told, message)

    def _keep(self, stream: Streamed, frame: bytes) -> None:
        """A frame inside a stream."""
        if frame[0] == STREAM_STOP:
            self._inside = None
        elif frame[0] != ORIGIN:
            if frame[0] == RELATION:
                self._told += 1
                stream.described[int.from_bytes(frame[5:9], "big")] = self._told
            elif frame[0] == MESSAGE:
                stream.has_messages = True
            stream.add(frame)

    def _abort(self, message: StreamAbort) -> None:
        """A streamed transaction, or a part of it, is rolled back. Of one that brought nothing there is nothing."""
        if message.subxid == message.xid:
            if (whole := self._spill.pop(message.xid)) is not None:
                whole.close()
            return
        stream = self._spill.open(message.xid)
        if stream.has_messages:
            raise RollbackUnclear(f"a part of transaction {message.xid}, which has messages, was rolled back")
        stream.abort(message.subxid)

    def _begin_replay(self, message: StreamCommit) -> None:
        """A streamed transaction is committed: from here on it is as if it came now."""
        stream = self._spill.pop(message.xid)
        if stream is None:
            raise MalformedChange(f"Stream Commit of transaction {message.xid}, of which nothing has come")
        self._replayed = stream
        end = COMMIT.pack(b"C", 0, message.lsn, message.end, message.committed - EPOCH)
        self._replay = chain(stream.frames(), [end])
        self._begin(self._events.stamp(message.lsn, message.xid, message.committed))

    def _end_replay(self) -> None:
        """What was described while the transaction was streamed counts again."""
        for oid, (told, relation) in self._replayed_relations.items():
            known = self._relations.get(oid)
            if known is not None and known[0] > told:
                self._events.learn(known[1])
            else:
                self._relations[oid] = (told, relation)
        if self._replayed is not None:
            self._replayed.close()
        self._replay, self._replayed, self._replayed_relations = None, None, {}
