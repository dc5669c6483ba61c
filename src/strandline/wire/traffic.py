"""What happened on one connection, as records of a bounded size (`traffic.proto`).

The rules: records of a connection are numbered from 1, each below `MAX_RECORD` bytes; a read or write too long for one
is cut into segments that `segmentEnd` closes; the last one says that it is.
"""

from strandline.units import Nanos
from strandline.wire.traffic_pb2 import TrafficObservation, TrafficStream

TOPIC = "logging-traffic-topic"
"""Where captured traffic goes unless told otherwise."""
MAX_RECORD = 900_000
"""Below what librdkafka and a broker take by default, with room for the batch around it."""
OVERHEAD = 64
"""More than an observation takes beside its data: two times of 10 bytes, tags and lengths."""
LEAST_SEGMENT = 4096
"""No segment is cut smaller than this for the sake of filling a record."""


def when(observation: TrafficObservation) -> Nanos:
    """When something was seen, since 1970."""
    ts = observation.ts
    return Nanos(ts.seconds * 1_000_000_000 + ts.nanos)


def index_of(stream: TrafficStream) -> int:
    """Which part of its connection a record is; the first is 1."""
    return stream.number or stream.numberOfThisLastChunk


class Recording:
    """Takes what is seen on a connection and gives the records of it."""

    def __init__(self, node: str, connection: str, max_record: int = MAX_RECORD) -> None:
        self.node = node
        self.connection = connection
        self._max_record = max_record - len(node.encode()) - len(connection.encode()) - OVERHEAD
        self._number = 0
        self._requests = 0
        self._in_request = False
        self._full: list[bytes] = []
        self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._size = 0
        self._stream = TrafficStream(connectionId=self.connection, nodeId=self.node)
        if self._number > 1:
            self._stream.priorRequestsReceived = self._requests
            self._stream.lastObservationWasUnterminatedRead = self._in_request

    def connect(self, at: Nanos) -> None:
        """A client has connected."""
        self._observe(at).connect.SetInParent()

    def read(self, at: Nanos, data: bytes) -> None:
        """Bytes came from the client."""
        room = self._max_record - self._size - OVERHEAD
        if len(data) <= room:
            self._observe(at, len(data)).read.data = data
        else:
            for piece in self._pieces(data, room):
                self._observe(at, len(piece)).readSegment.data = piece
                # Not before: the first piece may open a record that begins with this read.
                self._in_request = True
            self._observe(at).segmentEnd.SetInParent()
        self._in_request = True

    def write(self, at: Nanos, data: bytes) -> None:
        """Bytes went to the client."""
        room = self._max_record - self._size - OVERHEAD
        if len(data) <= room:
            self._observe(at, len(data)).write.data = data
        else:
            for piece in self._pieces(data, room):
                self._observe(at, len(piece)).writeSegment.data = piece
            self._observe(at).segmentEnd.SetInParent()

    def end_of_request(self, at: Nanos, *, first_line: int | None = None, headers: int | None = None) -> None:
        """The request that was being read is complete."""
        mark = self._observe(at).endOfMessageIndicator
        mark.SetInParent()
        if first_line is not None and headers is not None:
            mark.firstLineByteLength, mark.headersByteLength = first_line, headers
        self._requests += 1
        self._in_request = False

    def drop_request(self, at: Nanos) -> None:
        """The request that was being read is not recorded; what came of it before does not count."""
        self._observe(at).requestDropped.SetInParent()
        self._in_request = False

    def release(self, at: Nanos, *, timed_out: bool) -> None:
        """A request that was held back went on."""
        mark = self._observe(at).requestReleasedDownstream
        mark.SetInParent()
        mark.timedOut = timed_out

    def fail(self, at: Nanos, message: str) -> None:
        """Something went wrong with the connection."""
        self._observe(at, len(message) * 4).connectionException.message = message

    def disconnect(self, at: Nanos) -> None:
        """The client sends no more."""
        self._observe(at).disconnect.SetInParent()

    def close(self, at: Nanos) -> None:
        """The connection has ended."""
        self._observe(at).close.SetInParent()

    def take(self, *, last: bool = False) -> list[bytes]:
        """The records of all that was seen since the last call; after the last one nothing may be added."""
        if self._stream.subStream or last:
            self._cut(last=last)
        full, self._full = self._full, []
        return full

    def _observe(self, at: Nanos, size: int = 0) -> TrafficObservation:
        if self._size + size + OVERHEAD > self._max_record:
            self._cut(last=False)
        self._size += size + OVERHEAD
        observation = self._stream.subStream.add()
        ts = observation.ts
        ts.seconds, ts.nanos = divmod(at, 1_000_000_000)
        return observation

    def _cut(self, *, last: bool) -> None:
        if last:
            self._stream.numberOfThisLastChunk = self._number
        else:
            self._stream.number = self._number
        self._full.append(self._stream.SerializeToString())
        self._begin()

    def _pieces(self, data: bytes, room: int) -> list[bytes]:
        most = self._max_record - OVERHEAD
        first = room if room >= LEAST_SEGMENT else most
        return [data[:first], *(data[start : start + most] for start in range(first, len(data), most))]
