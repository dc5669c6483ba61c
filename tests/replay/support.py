"""A target that remembers what came, captured traffic as a test wants it, and a replay of the one onto the other."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.replay.plan import Plan, Until
from strandline.replay.replay import Replay
from strandline.replay.target import Target
from strandline.replay.transforms import Transform
from strandline.units import Nanos
from strandline.wire.http1 import RequestFramer
from strandline.wire.traffic import Recording
from tests.ordered.support import create_topic
from tests.support import TIMEOUT

MS = 1_000_000
BEGIN = 1_780_000_000_000 * MS
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Arrival:
    """A request as it came to the target."""

    connection: int
    at: int
    """By the monotonic clock, in nanoseconds."""
    content: bytes

    @property
    def path(self) -> str:
        return self.content.split(b" ", 2)[1].decode()

    @property
    def mark(self) -> str:
        return self.header("X-Strandline-Request")

    def header(self, name: str) -> str:
        head = self.content.partition(b"\r\n\r\n")[0].decode()
        found = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith(name.lower() + ":")]
        assert len(found) == 1, f"{name} in {head}"
        return found[0]


Answering = Callable[["Peer", bytes], Awaitable[None]]


async def answer_ok(peer: "Peer", _request: bytes) -> None:
    peer.write(OK)


def answering(answer: bytes, *, close: bool = False) -> Answering:
    """The same answer to everything; the connection closed after it or not."""

    async def answer_all(peer: "Peer", _request: bytes) -> None:
        peer.write(answer)
        if close:
            peer.close()

    return answer_all


class Held:
    """Answers only what it was told to let go."""

    def __init__(self, *paths: str) -> None:
        self._held = set(paths)
        self._gone = asyncio.Event()

    async def __call__(self, peer: "Peer", request: bytes) -> None:
        if request.split(b" ", 2)[1].decode() in self._held:
            await self._gone.wait()
        peer.write(OK)

    def let_go(self) -> None:
        self._gone.set()


class Peer(asyncio.Protocol):
    """The target's end of a connection."""

    def __init__(self, server: "Server", number: int) -> None:
        self._server = server
        self.number = number
        self._framer = RequestFramer()
        self._begun = b""
        self._since = 0
        self.transport: asyncio.Transport | None = None
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._server.open.add(self.number)
        self._server.peers.add(self)
        self._task = asyncio.ensure_future(self._answer())

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self.number)
        self._server.peers.discard(self)
        self._server.closed[self.number] = time.monotonic_ns()
        self._task.cancel()

    def data_received(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            self._since = self._since if self._begun else time.monotonic_ns()
            self._server.pieces.append((time.monotonic_ns(), len(data)))
            stop = self._framer.feed(data, start)
            self._begun += data[start:stop]
            start = stop
            if self._framer.complete:
                self._framer.next()
                self._server.arrivals.append(Arrival(self.number, self._since, self._begun))
                self._answers.put_nowait(self._begun)
                self._begun = b""

    async def _answer(self) -> None:
        while True:
            await self._server.answering(self, await self._answers.get())

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        assert self.transport is not None
        self.transport.close()

    def reset(self) -> None:
        assert self.transport is not None
        self.transport.abort()


@dataclass
class Server:
    """A target."""

    answering: Answering = answer_ok
    arrivals: list[Arrival] = field(default_factory=list)
    pieces: list[tuple[int, int]] = field(default_factory=list)
    open: set[int] = field(default_factory=set)
    closed: dict[int, int] = field(default_factory=dict)
    peers: "set[Peer]" = field(default_factory=set)
    count: int = 0
    port: int = 0

    def make(self) -> Peer:
        self.count += 1
        return Peer(self, self.count)

    async def start(self, tls: Any = None) -> None:
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self.make, "127.0.0.1", self.port, ssl=tls)
        self.port = self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more; connections stay."""
        self._listening.close()

    async def go_away(self) -> None:
        """Listen no more, and break every connection."""
        await self.stop()
        for peer in list(self.peers):
            peer.reset()

    @property
    def paths(self) -> list[str]:
        return [arrival.path for arrival in self.arrivals]


@asynccontextmanager
async def serving(answering: Answering = answer_ok, tls: Any = None) -> AsyncIterator[Server]:
    server = Server(answering)
    await server.start(tls)
    try:
        yield server
    finally:
        await server.go_away()


def listening_with_little_room() -> socket.socket:
    """A listening socket; the kernel takes 64 KiB or so for each of its connections, however much it may take.

    Without it, the kernel's limit (`net.ipv4.tcp_rmem`) may be larger than what a test sends.
    """
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    found.bind(("127.0.0.1", 0))
    found.listen()
    return found


def get(path: str, *fields: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: source.example", *fields, "", ""]).encode()


def post(path: str, body: bytes, *fields: str) -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: source", f"Content-Length: {len(body)}", *fields, "", ""])
    return head.encode() + body


@dataclass(frozen=True)
class Said:
    """A request of the source, when it was sent (milliseconds from the beginning), and the answer to it."""

    at: float
    request: bytes
    answer: bytes | None = OK


def connection(name: str, said: Sequence[Said], *, close_at: float | None = None, node: str = "node") -> list[bytes]:
    """The records of one connection, a record for each request with its answer."""
    recording = Recording(node, name)
    records: list[bytes] = []
    for exchange in said:
        at = Nanos(BEGIN + int(exchange.at * MS))
        recording.read(at, exchange.request)
        recording.end_of_request(at)
        if exchange.answer is not None:
            recording.write(Nanos(at + MS), exchange.answer)
        records += recording.take()
    if close_at is not None:
        recording.close(Nanos(BEGIN + int(close_at * MS)))
        records += recording.take(last=True)
    return records


def write(address: str, topic: str, records: Iterable[tuple[str, bytes]], partition: int = -1) -> None:
    """Put records, each with its key, into a topic."""
    # Idempotent, so that a slow broker does not change their order.
    settings = {"linger.ms": 5, "message.max.bytes": 2_000_000, "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": address, **settings})
    for key, value in records:
        producer.produce(topic, value, key, partition=partition)
    assert producer.flush(TIMEOUT) == 0


def capture(address: str, topic: str, connections: dict[str, list[bytes]], partitions: int = 1) -> None:
    """A topic with these connections, their records one connection after the other."""
    create_topic(address, topic, partitions)
    write(address, topic, ((name, record) for name, records in connections.items() for record in records))


def plan(address: str, topic: str, server: Server | str, **changes: Any) -> Plan:
    """Replay a topic once, to its end."""
    url = server if isinstance(server, str) else f"http://127.0.0.1:{server.port}"
    target = changes.pop("target", None) or Target(url)
    given = {
        "kafka": {"bootstrap.servers": address, "group.id": f"{topic}-group"},
        "target": target,
        "transform": Transform(target.authority),
        "topic": topic,
        "until": Until.LIVE,
        **changes,
    }
    return Plan(**given)


async def replay(chosen: Plan) -> Replay:
    """Run a replay to its end."""
    run = Replay(chosen)
    async with asyncio.timeout(TIMEOUT):
        await run.run()
    return run


@asynccontextmanager
async def running(chosen: Plan) -> AsyncIterator[Replay]:
    """A replay in the midst of it; at the end it is waited for."""
    run = Replay(chosen)
    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
        tasks.create_task(run.run())
        yield run


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {what}"
        await asyncio.sleep(0.01)


def due(run: Replay, ms: float) -> int:
    """When what the source did so many milliseconds after the beginning was due, by the monotonic clock."""
    return run.engine.timeline.due(Nanos(BEGIN + int(ms * MS)))


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def committed(address: str, topic: str, partitions: int = 1, group: str | None = None) -> list[int]:
    """What the group of a plan has committed, by partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group or f"{topic}-group"})
    try:
        found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=TIMEOUT)
        return [place.offset for place in found]
    finally:
        consumer.close()
