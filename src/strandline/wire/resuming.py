"""Transactions that are put together in steps, with nothing but bytes kept between them: the state of a stream.

The rules that this file keeps:

1. However the log is cut into steps, the rows are those of one reading, each told once.
2. The state of a connection is how it stood when nothing of it was unfinished, and the records since then as they are.
   Going on reads these again, telling nothing, and is where it was. A connection with nothing unfinished costs a few
   bytes.
3. The records in a state have a bound in bytes. Beyond it the connection that has most of them is told as it is, and
   nothing more of it.
"""

from typing import Self

import msgspec

from strandline.units import Nanos
from strandline.wire.assembly import Assembly, Capture
from strandline.wire.captured import stream_of
from strandline.wire.resumable import ResumableAccumulator
from strandline.wire.standing import Standing
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Transaction


class Connection(msgspec.Struct, array_like=True, gc=False):
    """An open connection in a state."""

    node: str
    connection: str
    index: int
    """The number of its next transaction, as it stood."""
    standing: Standing | None
    """None if it was not known before the first of its records."""
    records: list[tuple[int, bytes]]
    """What came since: offsets and values."""


class State(msgspec.Struct, array_like=True, gc=False):
    """A partition between two steps."""

    time: Nanos | None
    connections: list[Connection]
    """Those of each node that are longest unseen first."""
    times: dict[str, Nanos] = {}
    """Of each node."""


STATE = msgspec.msgpack.Decoder(State)


class _Held:
    """The records of a connection since it last had nothing unfinished."""

    __slots__ = ("index", "records", "size", "standing")

    def __init__(self, index: int, standing: Standing | None) -> None:
        self.index = index
        self.standing = standing
        self.records: list[tuple[int, bytes]] = []
        self.size = 0


class ResumableAssembly(Assembly):
    """Takes the records of one partition in their order, in steps."""

    _accumulator: ResumableAccumulator

    def __init__(self, capture: Capture, partition: int, state_bytes: int) -> None:
        super().__init__(capture, ResumableAccumulator)
        self._partition = partition
        self._state_bytes = state_bytes
        self._held: dict[ConnectionKey, _Held] = {}
        self._size = 0
        self._last_index = 0
        """The number behind the last transaction of the connection that was last closed."""
        self._at_hand = _Held(0, None)
        """Of the connection whose record is read."""

    @classmethod
    def resume(cls, capture: Capture, partition: int, state_bytes: int, state: bytes) -> Self:
        """Go on from a state."""
        assembly = cls(capture, partition, state_bytes)
        assembly._go_on(STATE.decode(state))
        return assembly

    def state(self) -> bytes:
        """All that is needed to go on."""
        found = []
        for key in self._accumulator.keys(self._partition):
            held = self._held.get(key)
            if held is None:
                standing = self._accumulator.standing(self._partition, key)
                found.append(Connection(*key, self._indexes[self._partition, key], standing, []))
            else:
                found.append(Connection(*key, held.index, held.standing, held.records))
        return msgspec.msgpack.encode(
            State(self._accumulator.time(self._partition), found, self._accumulator.times(self._partition))
        )

    def _go_on(self, state: State) -> None:
        partition = self._partition
        keys = [ConnectionKey(found.node, found.connection) for found in state.connections]
        for key, found in zip(keys, state.connections, strict=True):
            if found.standing is not None:
                self._accumulator.put_back(partition, key, found.standing)
                self._indexes[partition, key] = found.index
        self._accumulator.is_going_on = True
        for found in state.connections:
            for offset, value in found.records:
                self._accept_held(offset, value, stream_of(value))
        self._accumulator.is_going_on = False
        self._accumulator.arrange(partition, keys, state.time, state.times)

    def take(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """The next record. Raises ScatteredCapture and UnreadableRecord."""
        stream = self._stream(partition, offset, key, value)
        if stream is not None:
            self._accept_held(offset, value or b"", stream)
            if self._size > self._state_bytes:
                self._give_up_largest()

    def _accept_held(self, offset: int, value: bytes, stream: TrafficStream) -> None:
        partition, key = self._partition, ConnectionKey(stream.nodeId, stream.connectionId)
        self._at_hand = self._held.get(key) or _Held(
            self._indexes.get((partition, key), 0), self._accumulator.standing(partition, key)
        )
        self._accept(partition, offset, stream)
        if not self._accumulator.is_unfinished(partition, key):
            self._let_go(key)
            return
        held = self._held[key] = self._at_hand
        held.records.append((offset, value))
        held.size += len(value)
        self._size += len(value)

    def _let_go(self, key: ConnectionKey) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._size -= held.size

    def _give_up_largest(self) -> None:
        key = max(self._held, key=lambda key: self._held[key].size)
        place = (self._partition, key)
        standing = self._accumulator.give_up(self._partition, key)
        self._indexes[place] = self._last_index
        self._accumulator.put_back(self._partition, key, standing)

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        self._let_go(key)
        self._last_index = self._indexes[partition, key]
        if cause is Cause.BROKEN:
            # The record at hand begins another one of the same name.
            self._at_hand = _Held(0, None)
        super().on_close(key, partition, at, cause)

    def _tell(self, transaction: Transaction) -> None:
        if not self._accumulator.is_going_on:
            super()._tell(transaction)
            return
        place = (self._partition, transaction.key)
        self._indexes[place] += 1
        transaction.packets.release()
