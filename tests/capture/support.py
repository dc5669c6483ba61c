"""A raw upstream, a capture in front of it, and what the capture put into Kafka."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import uvloop
from confluent_kafka import Consumer, TopicPartition

from strandline.capture.config import Settings
from strandline.capture.proxy import Proxy
from strandline.wire.http1 import FramingError, RequestFramer
from strandline.wire.traffic import index_of
from strandline.wire.traffic_pb2 import TrafficStream
from tests.support import TIMEOUT

T = TypeVar("T")
Event = tuple[str, Any]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def run(work: Coroutine[Any, Any, T]) -> T:
    """On a loop as the command has it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(asyncio.wait_for(work, TIMEOUT))


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        await asyncio.sleep(0.01)


class Upstream:
    """Answers each complete request with the next of its answers, and keeps what came."""

    def __init__(self, answers: Iterable[bytes] = (), *, then_close: bool = False) -> None:
        self.received = bytearray()
        self.complete = 0
        self.connections = 0
        self.ended = 0
        self._answers = iter(answers)
        self._then_close = then_close
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        framer: RequestFramer | None = RequestFramer()
        has_continued = False
        while data := await reader.read(1 << 16):
            self.received += data
            if framer is None:
                writer.write(data)
            start = 0
            while framer is not None and start < len(data):
                try:
                    start = framer.feed(data, start)
                except FramingError:
                    framer = None
                    writer.write(next(self._answers, b""))
                    break
                if framer.complete:
                    self.complete += 1
                    writer.write(next(self._answers, OK))
                    if b"\nupgrade:" in framer.head.lower():
                        framer = None
                        break
                    framer.next()
                    has_continued = False
                elif b"100-continue" in framer.head and not has_continued:
                    has_continued = True
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            if self._then_close and self.complete:
                break
        else:
            self.ended += 1
        writer.close()

    @asynccontextmanager
    async def listening(self, **options: Any) -> AsyncIterator["Upstream"]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, **options)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()


@asynccontextmanager
async def capturing(kafka: str, port: int, topic: str, **settings: Any) -> AsyncIterator[Proxy]:
    """A capture that listens on a free port."""
    reach = {"bootstrap.servers": kafka}
    defaults: dict[str, Any] = {"listen": ("127.0.0.1", 0), "upstream": ("127.0.0.1", port), "node": "test"}
    # Whatever Kafka is slow with is waited for.
    patient = dict.fromkeys(("release_after_s", "connect_within_s", "stop_within_s"), TIMEOUT)
    async with Proxy(Settings(**{**defaults, **patient, "kafka": reach, "topic": topic, **settings})) as proxy:
        yield proxy


def port_of(proxy: Proxy) -> int:
    return int(proxy.address.rpartition(":")[2])


async def talk(port: int, *pieces: bytes, half_close: bool = True, **options: Any) -> bytes:
    """Send something, then say that no more will come; all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    if half_close:
        writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    return answer


def new_topic() -> str:
    return f"capture-{uuid4().hex[:12]}"


@dataclass(frozen=True)
class Captured:
    """One connection as it is in Kafka."""

    id: str
    events: list[Event]
    is_whole: bool
    """Numbered from 1 without a gap, and the last one says so."""

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    @property
    def requests(self) -> list[bytes]:
        """What was read up to each end of a request, and what is left."""
        found = [b""]
        for kind, value in self.events:
            if kind == "read":
                found[-1] += value
            elif kind == "end":
                found.append(b"")
        return found if found[-1] else found[:-1]

    @property
    def read(self) -> bytes:
        return b"".join(value for kind, value in self.events if kind == "read")

    @property
    def written(self) -> bytes:
        return b"".join(value for kind, value in self.events if kind == "write")


def events_of(streams: Iterable[TrafficStream]) -> list[Event]:
    """What happened, with segments put together."""
    events: list[Event] = []
    joined: dict[str, bytes] = defaultdict(bytes)
    for observation in (o for stream in streams for o in stream.subStream):
        kind = observation.WhichOneof("Capture")
        match kind:
            case "read" | "write":
                events.append((kind, getattr(observation, kind).data))
            case "readSegment" | "writeSegment":
                joined[kind.removesuffix("Segment")] += getattr(observation, kind).data
            case "segmentEnd":
                events += joined.items()
                joined.clear()
            case "endOfMessageIndicator":
                mark = observation.endOfMessageIndicator
                events.append(("end", (mark.firstLineByteLength, mark.headersByteLength)))
            case "requestReleasedDownstream":
                events.append(("release", observation.requestReleasedDownstream.timedOut))
            case "connectionException":
                events.append(("exception", observation.connectionException.message))
            case _:
                events.append((str(kind), None))
    return events


def captured(records: Iterable[tuple[str, bytes]]) -> list[Captured]:
    """The connections of records with their keys, by their first record."""
    found: dict[str, list[TrafficStream]] = defaultdict(list)
    for key, value in records:
        stream = TrafficStream.FromString(value)
        assert stream.connectionId == key
        found[key].append(stream)
    return [
        Captured(
            id=key,
            events=events_of(streams),
            is_whole=[index_of(stream) for stream in streams] == [*range(1, len(streams) + 1)]
            and bool(streams[-1].numberOfThisLastChunk),
        )
        for key, streams in found.items()
    ]


def records_of(kafka: str, topic: str) -> list[tuple[str, bytes]]:
    """All records that a topic has now, with their keys."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "test", "enable.auto.commit": False})
    try:
        partitions = [
            TopicPartition(topic, p, 0) for p in consumer.list_topics(topic, TIMEOUT).topics[topic].partitions
        ]
        wanted = sum(consumer.get_watermark_offsets(partition, TIMEOUT)[1] for partition in partitions)
        consumer.assign(partitions)
        found: list[tuple[str, bytes]] = []
        deadline = time.monotonic() + TIMEOUT
        while len(found) < wanted:
            assert time.monotonic() < deadline, f"{len(found)} of {wanted} records"
            for message in consumer.consume(wanted, timeout=0.2):
                assert message.error() is None
                found.append(((message.key() or b"").decode(), bytes(message.value() or b"")))
        return found
    finally:
        consumer.close()


def in_kafka(kafka: str, topic: str) -> Sequence[Captured]:
    """The connections that a topic has now."""
    return captured(records_of(kafka, topic))
