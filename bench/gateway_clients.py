"""Clients of the gateway for its benchmark, in a process of their own: they parse every message, and nothing else.

`python -m bench.gateway_clients URL COUNT CHANNEL SECONDS`: subscribes them all, prints `ready`, and at the end one
line of JSON: messages, seconds, and how long after they were written messages came, in milliseconds.
"""

import asyncio
import base64
import json
import os
import struct
import sys
import time
from array import array
from urllib.parse import urlsplit

import msgspec
import numpy as np
import uvloop

FINAL_TEXT = 0x81


class _Sent(msgspec.Struct):
    at: float = 0.0


class _Told(msgspec.Struct):
    offset: int = -1
    data: _Sent | None = None


_decode = msgspec.json.Decoder(_Told).decode


def masked(text: bytes) -> bytes:
    """A text as one frame of a client; its mask is zero, which hides nothing and costs nothing."""
    size = len(text)
    head = (
        struct.pack("!BB", FINAL_TEXT, 0x80 | size) if size < 126 else struct.pack("!BBH", FINAL_TEXT, 0x80 | 126, size)
    )
    return head + bytes(4) + text


class Listener(asyncio.Protocol):
    """One client."""

    def __init__(self, host: str, first: bytes) -> None:
        self._host = host
        self._first = first
        self._left = b""
        self._is_open = False
        self.messages = 0
        self.delays = array("d")
        self.told: list[bytes] = []
        self.subscribed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(  # type: ignore[attr-defined]
            f"GET / HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        data = self._left + data if self._left else data
        if not self._is_open:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._left = data
                return
            self._is_open = True
            self.transport.write(self._first)  # type: ignore[attr-defined]
            data = data[end + 4 :]
        at, size = 0, len(data)
        while size - at >= 2:
            length, begin = data[at + 1], at + 2
            if length == 126:
                if size - at < 4:
                    break
                length, begin = int.from_bytes(data[at + 2 : at + 4]), at + 4
            elif length == 127:
                if size - at < 10:
                    break
                length, begin = int.from_bytes(data[at + 2 : at + 10]), at + 10
            if begin + length > size:
                break
            if data[at] == FINAL_TEXT:
                self._hear(data[begin : begin + length])
            at = begin + length
        self._left = data[at:]

    def _hear(self, text: bytes) -> None:
        told = _decode(text)
        if told.offset >= 0:
            self.messages += 1
            # All of one in sixteen: a clock for each would be measured too.
            if told.data is not None and self.messages & 15 == 0:
                self.delays.append(time.time() - told.data.at)
        else:
            self.told.append(text)
            if not self.subscribed.done():
                self.subscribed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.subscribed.done():
            self.subscribed.set_exception(ConnectionError(f"closed: {exc}"))


async def main(url: str, count: int, channel: str, seconds: float) -> None:
    """Listen."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    hello = masked(json.dumps({"type": "subscribe", "data": {"channels": [channel]}}).encode())
    listeners = []
    for _ in range(count):
        _, listener = await loop.create_connection(
            lambda: Listener(place.netloc, hello), place.hostname or "", place.port or 0
        )
        await listener.subscribed
        listeners.append(listener)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    before, begin = sum(listener.messages for listener in listeners), time.perf_counter()
    for listener in listeners:
        del listener.delays[:]
    await asyncio.sleep(seconds)
    messages = sum(listener.messages for listener in listeners) - before
    took = time.perf_counter() - begin
    delays = np.concatenate(
        [np.frombuffer(listener.delays) for listener in listeners if listener.delays] or [np.zeros(1)]
    )
    p50, p99 = (float(value) * 1000 for value in np.percentile(delays, [50, 99]))
    print(json.dumps({"messages": messages, "seconds": took, "p50": p50, "p99": p99}), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])))
