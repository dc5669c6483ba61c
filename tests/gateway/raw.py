"""A WebSocket client made of bytes, which says what no library would, and a gateway beside the test for it."""

import asyncio
import base64
import json
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, NamedTuple, Self

import uvloop

from tests.gateway.support import serving
from tests.support import TIMEOUT

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = base64.b64encode(bytes(range(16))).decode()
# What RFC 6455 makes of that key.
ACCEPT = "Bz3qJYTGdOe8gUSpLosEdiLKDrk="
HEADERS = {
    "Host": "gateway",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": KEY,
    "Sec-WebSocket-Version": "13",
}


class Seen(NamedTuple):
    """A frame of the server's."""

    opcode: int
    payload: bytes


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """A frame of a client's, right or wrong."""
    return header(opcode, len(payload), fin=fin, rsv=rsv, masked=masked) + (_masked(payload) if masked else payload)


def header(opcode: int, size: int, *, fin: bool = True, rsv: int = 0, masked: bool = True, form: int = 0) -> bytes:
    """The head of a frame; `form` has its size take 2 or 8 bytes, though it may need less."""
    first, bit = fin << 7 | rsv << 4 | opcode, masked << 7
    if size < 126 and not form:
        return struct.pack("!BB", first, bit | size)
    if size < 1 << 16 and form < 8:
        return struct.pack("!BBH", first, bit | 126, size)
    return struct.pack("!BBQ", first, bit | 127, size)


MASK = b"\x11\x22\x33\x44"


def _masked(payload: bytes) -> bytes:
    mask = (MASK * (len(payload) // 4 + 1))[: len(payload)]
    return MASK + (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(len(payload))


def close(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def request(line: str = "GET / HTTP/1.1", *, without: str = "", **changed: str) -> bytes:
    """A handshake; `changed` has underscores for the dashes of a header's name."""
    headers = {**HEADERS, **{name.replace("_", "-"): value for name, value in changed.items()}}
    headers.pop(without, None)
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


class Raw:
    """One connection."""

    def __init__(self, port: int, hello: bytes, *, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._came = b""
        self.is_reset = False
        self.socket.sendall(hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            self.is_reset, data = True, b""
        self._came += data
        return bool(data)

    def head(self) -> str:
        """The head of the answer to the handshake."""
        while b"\r\n\r\n" not in self._came and self._more():
            pass
        found, end, self._came = self._came.partition(b"\r\n\r\n")
        return (found + end).decode()

    def _take(self, count: int) -> bytes | None:
        while len(self._came) < count:
            if not self._more():
                return None
        found, self._came = self._came[:count], self._came[count:]
        return found

    def send(self, data: bytes, chop: int = 0) -> None:
        """Write all of it, or piece by piece so that each arrives alone."""
        for at in range(0, len(data), chop or len(data) or 1):
            self.socket.sendall(data[at : at + chop] if chop else data)

    def hear(self) -> Seen | None:
        """The next frame; None where the server has ended the connection."""
        head = self._take(2)
        if head is None:
            return None
        size = head[1] & 0x7F
        if size > 125:
            more = self._take(2 if size == 126 else 8)
            assert more is not None
            size = int.from_bytes(more)
        assert head[0] & 0xF0 == 0x80, "a server's frame is whole, and has no reserved bits"
        assert not head[1] & 0x80, "a server's frame is not masked"
        payload = self._take(size)
        assert payload is not None
        return Seen(head[0] & 0x0F, payload)

    def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        while self._more():
            pass
        return self._came


def greeted(port: int, hello: bytes | None = None, *, receive_bytes: int | None = None) -> Raw:
    """A connection behind its handshake."""
    raw = Raw(port, request() if hello is None else hello, receive_bytes=receive_bytes)
    assert raw.head().startswith("HTTP/1.1 101 ")
    return raw


def say(raw: Raw, kind: str, **data: Any) -> None:
    """Say something as a client does."""
    raw.send(frame(TEXT, json.dumps({"type": kind, "data": data}).encode()))


def hear(raw: Raw) -> dict[str, Any]:
    """The next message, or the code of a close."""
    while (heard := raw.hear()) is not None and heard.opcode == PING:
        pass
    assert heard is not None
    if heard.opcode == CLOSE:
        return {"closed": int.from_bytes(heard.payload[:2])}
    found: dict[str, Any] = json.loads(heard.payload)
    return found


def until(raw: Raw, *kinds: str) -> dict[str, Any]:
    """The next message of some kind, or the code of a close."""
    while (heard := hear(raw)).get("type") not in kinds and "closed" not in heard:
        pass
    return heard


@contextmanager
def beside(kafka: str, topics: list[str], **config: Any) -> Iterator[int]:
    """The port of a gateway on a loop of its own."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()

    async def serve() -> None:
        try:
            async with serving(kafka, topics, **config) as gateway:
                stop = asyncio.Event()
                started.set_result((asyncio.get_running_loop(), stop, int(gateway.address.rpartition(":")[2])))
                await stop.wait()
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = Thread(target=run, daemon=True)
    thread.start()
    loop, stop, port = started.result(TIMEOUT)
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(TIMEOUT)
