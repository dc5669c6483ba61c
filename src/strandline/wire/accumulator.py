"""Captured records of many connections, put together to HTTP transactions.

The rules that this file keeps:

1. However the traffic of a connection is cut into records, observations and segments, the transactions are the same.
2. A request ends where HTTP/1 says; where its bytes are not HTTP/1, where the capture marked its end or the answer
   begins. Two requests in one read are two. A mark never cuts a request that follows the one it belongs to. Whether a
   request counts is known when something follows it: the capture may say at once that it was dropped.
3. A response ends where HTTP/1 says; where its bytes are not HTTP/1, with the next read; else with the connection.
4. A record is held by every transaction that has a byte of it, and is freed when the last of them lets it go. A
   request that begins behind the end of one of an earlier record, with no mark or answer between them in its own, holds
   that one's records too: who began to read between them could not tell where it begins.
5. A connection is gone when it closes, when its last record is through, when nothing was seen of it for the time-out
   in source time, or when its partition came to us anew. What of it is incomplete then is told as such, once. The
   time is that of its own node, which may write later than others; of one of which nothing comes at all, that of the
   partition, some time-outs behind.
6. A time that cannot be moves nothing: what has one is taken for seen together with what lies before it in the log.
7. What came before the first record that we see of a connection is left alone: the rest of a request that had begun,
   and answers to requests that we have not seen.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

from strandline.units import Nanos
from strandline.wire.answers import KEEP, Count
from strandline.wire.gathering import Gathering
from strandline.wire.http1 import FramingError, RequestFramer
from strandline.wire.traffic import index_of
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Packets, Record, Sink, Transaction

CR_LF = b"\r\n"
FARTHEST = Nanos(1 << 100)
INTERIM = b"HTTP/1.1 1"
READ_GOES_ON = frozenset({"requestDropped", "segmentEnd"})
"""What may follow the last byte of a request and says nothing of what comes behind it."""
BEHIND = 9
"""So many time-outs may a node be behind its partition before the partition's time counts for its connections too."""


class State(Enum):
    """What a connection is at."""

    WAITING = auto()
    """No request has begun since the last answer."""
    READING = auto()
    """A request has begun."""
    ANSWERING = auto()
    """A request is complete, its answer is not."""
    IGNORING = auto()
    """A request that had begun before we saw the connection goes on."""


class _Lane:
    """What one node has captured on a partition."""

    __slots__ = ("connections", "time")

    def __init__(self) -> None:
        self.connections: OrderedDict[str, _Connection] = OrderedDict()
        """By name, those longest unseen first."""
        self.time = Nanos(0)


class _Partition:
    __slots__ = ("lanes", "time")

    def __init__(self) -> None:
        self.lanes: dict[str, _Lane] = {}
        """By node."""
        self.time: Nanos | None = None


class _Connection:
    __slots__ = (
        "awaiting",
        "before",
        "current",
        "framer",
        "gathering",
        "generation",
        "index",
        "is_ignoring",
        "is_opaque",
        "key",
        "lane",
        "partition",
        "seen",
        "unmarked",
        "was_open",
    )

    def __init__(
        self, key: ConnectionKey, lane: _Lane, record: Record, stream: TrafficStream, count: Count | None = None
    ) -> None:
        self.key = key
        self.lane = lane
        self.partition = record.partition
        self.generation = record.generation
        self.index = index_of(stream)
        self.seen = Nanos(0)
        self.was_open = self.index > 1 or stream.priorRequestsReceived > 0
        self.is_ignoring = stream.lastObservationWasUnterminatedRead
        self.is_opaque = False
        self.framer: RequestFramer | None = RequestFramer()
        self.gathering = Gathering(count=count)
        self.current: Transaction | None = None
        self.unmarked: list[Transaction] = []
        """Requests that are complete by the last read; the capture may yet drop the last of them."""
        self.awaiting: deque[Transaction] = deque()
        self.before: Sequence[Record] = ()
        """What must be read, beside its own record, to know where a request begins that begins now."""

    def going_on(self) -> Sequence[Record]:
        """The records of the request that was last read from."""
        last = self.current or (self.unmarked[-1] if self.unmarked else None)
        return last.anchors if last is not None else ()

    @property
    def state(self) -> State:
        if self.is_ignoring:
            return State.IGNORING
        if self.current or self.unmarked:
            return State.READING
        return State.ANSWERING if self.awaiting else State.WAITING


class Accumulator:
    """Takes records, partition by partition in their order; tells its sink of requests, answers and closes."""

    def __init__(
        self,
        sink: Sink,
        make_packets: Callable[[], Packets],
        *,
        expire_after: Nanos,
        keep: Callable[[], int] = lambda: KEEP,
        count: Count | None = None,
    ) -> None:
        self._sink = sink
        self._make_packets = make_packets
        self._expire_after = expire_after
        self._keep = keep
        self._count = count
        self._partitions: dict[int, _Partition] = {}
        self._unmarked: dict[int, dict[ConnectionKey, _Connection]] = {}
        self._first, self._latest = Nanos(0), FARTHEST
        self.strays = 0
        """How many observations had a time that cannot be."""

    def bound(self, first: Nanos, latest: Nanos) -> None:
        """No time beyond the latest can be: what has one counts as seen when its partition was read last, or first."""
        self._first, self._latest = first, latest

    def _stray(self, partition: int) -> Nanos:
        self.strays += 1
        time = self.time(partition)
        return self._first if time is None else time

    def accept(self, record: Record, stream: TrafficStream) -> None:
        """Take the next record of a partition."""
        record.hold()
        connection = self._connection(record, stream)
        if connection is not None:
            at = connection.seen
            connection.before = connection.going_on() if stream.lastObservationWasUnterminatedRead else ()
            for observation in stream.subStream:
                # As `when` has it: a call for each would cost more than that.
                ts = observation.ts
                at = Nanos(ts.seconds * 1_000_000_000 + ts.nanos)
                at = at if at <= self._latest else self._stray(record.partition)
                kind = observation.WhichOneof("Capture")
                if connection.unmarked and kind not in READ_GOES_ON:
                    self._confirm(connection)
                    if kind == "endOfMessageIndicator":
                        connection.before = ()
                        continue
                if kind in {"read", "readSegment"}:
                    self._read(connection, record, at, getattr(observation, kind).data)
                elif kind in {"write", "writeSegment"}:
                    self._write(connection, record, at, getattr(observation, kind).data)
                elif kind == "endOfMessageIndicator":
                    connection.before = ()
                    self._mark(connection)
                elif kind == "requestDropped":
                    connection.before = ()
                    self._drop(connection)
                elif kind == "close":
                    self._end(connection, at, Cause.CLOSED)
                    break
            else:
                connection.seen = max(connection.seen, at)
                if connection.unmarked:
                    self._unmarked.setdefault(record.partition, {})[connection.key] = connection
                if not stream.number:
                    self._end_if_last(connection, stream, at)
            self._pass(connection, at)
        record.release()

    def _end_if_last(self, connection: _Connection, stream: TrafficStream, at: Nanos) -> None:
        if stream.WhichOneof("index") == "numberOfThisLastChunk":
            self._end(connection, at, Cause.CLOSED)

    def _pass(self, connection: _Connection, at: Nanos) -> None:
        """A record was taken: its node's time has come so far."""
        lane, partition = connection.lane, self._partitions[connection.partition]
        lane.time = max(lane.time, at)
        reached = partition.time
        if reached is None or at > reached:
            partition.time = at
            if reached is not None and at // self._expire_after > reached // self._expire_after:
                self._pass_silent(partition, at)
        self._expire(lane)

    def _pass_silent(self, partition: _Partition, now: Nanos) -> None:
        """Look after nodes of which nothing comes any more. What those that are only late have still comes."""
        behind = Nanos(now - BEHIND * self._expire_after)
        for node, lane in list(partition.lanes.items()):
            if lane.time < behind:
                lane.time = behind
                self._expire(lane)
                if not lane.connections:
                    del partition.lanes[node]

    def _expire(self, lane: _Lane) -> None:
        connections, now = lane.connections, lane.time
        while connections:
            oldest = next(iter(connections.values()))
            if oldest.seen + self._expire_after >= now:
                break
            self._end(oldest, Nanos(oldest.seen + self._expire_after), Cause.EXPIRED)

    def advance(self, partition: int, now: Nanos) -> None:
        """The source's time has come so far on all nodes: connections that were silent for too long are gone."""
        found = self._partitions.get(partition)
        if found is None:
            return
        if found.time is None or now > found.time:
            found.time = now
        for lane in found.lanes.values():
            lane.time = max(lane.time, found.time)
            self._expire(lane)

    def settle(self, partition: int) -> None:
        """Nothing more is there to read for now: what is complete counts."""
        for connection in self._unmarked.pop(partition, {}).values():
            self._confirm(connection)

    def time(self, partition: int) -> Nanos | None:
        """How far the source's time has come in a partition."""
        found = self._partitions.get(partition)
        return None if found is None else found.time

    def drop(self, partition: int, cause: Cause) -> None:
        """Every connection of a partition is gone."""
        for connection in self._open(partition):
            self._end(connection, connection.seen, cause)
        self._partitions.pop(partition, None)
        self._unmarked.pop(partition, None)

    def untold(self, partition: int) -> Iterator[tuple[Transaction, bool]]:
        """Requests of a partition that the sink has not been told of, each with whether it is whole. From any thread.

        One that is whole waits for what follows it: the capture may yet drop it.
        """
        for connection in self._open(partition):
            yield from ((transaction, True) for transaction in list(connection.unmarked))
            if (current := connection.current) is not None:
                yield current, False

    def states(self) -> Counter[State]:
        """How many connections are at what."""
        return Counter(connection.state for partition in list(self._partitions) for connection in self._open(partition))

    def _open(self, partition: int) -> "list[_Connection]":
        found = self._partitions.get(partition)
        lanes = () if found is None else list(found.lanes.values())
        return [connection for lane in lanes for connection in list(lane.connections.values())]

    def _connection(self, record: Record, stream: TrafficStream) -> _Connection | None:
        """What we know of the record's connection; None if the record came before."""
        partition = self._partitions.get(record.partition)
        if partition is None:
            partition = self._partitions[record.partition] = _Partition()
        lane = partition.lanes.get(stream.nodeId)
        if lane is None:
            lane = partition.lanes[stream.nodeId] = _Lane()
        name, index = stream.connectionId, stream.number or stream.numberOfThisLastChunk
        known = lane.connections.get(name)
        if known is not None:
            is_stale = known.generation != record.generation
            if not is_stale:
                if not index or index == known.index + 1:
                    known.index = index
                    lane.connections.move_to_end(name)
                    return known
                if index <= known.index:
                    return None
            self._end(known, known.seen, Cause.REASSIGNED if is_stale else Cause.BROKEN)
        key = ConnectionKey(stream.nodeId, name)
        new = lane.connections[name] = _Connection(key, lane, record, stream, self._count)
        return new

    def _read(self, connection: _Connection, record: Record, at: Nanos, data: bytes) -> None:
        if connection.is_opaque or connection.is_ignoring or not data:
            return
        if not connection.gathering.is_http and connection.awaiting:
            self._answered(connection)
        start, end = 0, len(data)
        while start < end:
            framer, transaction = connection.framer, connection.current
            if transaction is not None:
                transaction.hold(record)
            else:
                if framer is not None and data[start] in CR_LF:
                    # Empty lines between requests belong to none.
                    start += 1
                    continue
                connection.current = transaction = Transaction(
                    connection.key,
                    record,
                    self._make_packets(),
                    at,
                    before=connection.before,
                    was_open=connection.was_open,
                )
            stop = end
            if framer is not None:
                try:
                    stop = framer.feed(data, start)
                except FramingError:
                    # From here on only the capture's marks tell requests apart.
                    connection.framer = framer = None
            transaction.packets.add(at, data[start:stop])
            transaction.ended = at
            start = stop
            if framer is not None and framer.complete:
                transaction.head = framer.head
                transaction.method = framer.method
                framer.next()
                connection.unmarked.append(transaction)
                connection.current = None

    def _mark(self, connection: _Connection) -> None:
        """The capture says that a request has ended, which HTTP/1 does not say."""
        if connection.is_ignoring:
            connection.is_ignoring = False
        elif connection.current is not None:
            framer, transaction = connection.framer, connection.current
            if framer is not None:
                transaction.head, transaction.method = framer.head, framer.method or b"GET"
                framer.next()
            connection.current = None
            connection.unmarked.append(transaction)
            self._confirm(connection)

    def _confirm(self, connection: _Connection) -> None:
        """Requests that are complete count."""
        unmarked, connection.unmarked = connection.unmarked, []
        for transaction in unmarked:
            transaction.is_complete = True
            if transaction.is_answered:
                # The source answered before it had the whole request.
                self._sink.on_request(transaction)
                self._sink.on_answer(transaction)
                continue
            if not connection.awaiting and not connection.gathering.has_begun:
                connection.gathering.expect(transaction.method, self._keep())
            connection.awaiting.append(transaction)
            self._sink.on_request(transaction)

    def _write(self, connection: _Connection, record: Record, at: Nanos, data: bytes) -> None:
        if connection.is_opaque or not data:
            return
        if not data.startswith(INTERIM):
            connection.before = ()
        if connection.is_ignoring:
            connection.is_ignoring = data.startswith(INTERIM)
            return
        if connection.framer is None:
            self._mark(connection)
        start, end = 0, len(data)
        awaiting, gathering = connection.awaiting, connection.gathering
        while start < end and not connection.is_opaque:
            transaction = awaiting[0] if awaiting else self._answered_early(connection)
            if transaction is None:
                return
            transaction.hold(record)
            start = gathering.feed(data, start, at)
            if gathering.complete:
                self._answered(connection)

    def _answered_early(self, connection: _Connection) -> Transaction | None:
        """A request whose head is there, though not yet all of its body."""
        transaction, framer = connection.current, connection.framer
        if transaction is None or framer is None or not framer.in_body or transaction.is_answered:
            return None
        if not connection.gathering.has_begun:
            connection.gathering.expect(framer.method, self._keep())
        return transaction

    def _answered(self, connection: _Connection) -> None:
        """No more will come of the response to the oldest request."""
        awaiting, gathering = connection.awaiting, connection.gathering
        transaction = awaiting.popleft() if awaiting else connection.current
        if transaction is None:
            return
        transaction.answer = gathering.end()
        transaction.is_answered = True
        connection.is_opaque = gathering.is_opaque
        if awaiting:
            gathering.expect(awaiting[0].method, self._keep())
        else:
            # Whoever asks next says its method.
            gathering.expect(b"GET")
        if transaction.is_complete:
            self._sink.on_answer(transaction)

    @staticmethod
    def _drop(connection: _Connection) -> None:
        """The request that was being read, or has just been, does not count."""
        connection.is_ignoring = False
        if connection.current is not None:
            dropped, connection.current = connection.current, None
            if connection.framer is not None:
                connection.framer.next()
        elif connection.unmarked:
            dropped = connection.unmarked.pop()
        else:
            return
        dropped.packets.release()
        dropped.release()

    def _end(self, connection: _Connection, at: Nanos, cause: Cause) -> None:
        del connection.lane.connections[connection.key.connection]
        self._unmarked.get(connection.partition, {}).pop(connection.key, None)
        if cause is Cause.REASSIGNED:
            # Whoever reads the log from here on will know whether they count.
            unmarked, connection.unmarked = connection.unmarked, []
            for transaction in unmarked:
                self._sink.on_unsent(transaction, cause)
        self._confirm(connection)
        while connection.awaiting:
            self._answered(connection)
        framer, half = connection.framer, connection.current
        if half is not None:
            if framer is not None and framer.in_body:
                half.head, half.method = framer.head, framer.method
            self._sink.on_unsent(half, cause)
        connection.gathering.drop()
        self._sink.on_close(connection.key, connection.partition, at, cause)
