"""Clients of the gateway for its benchmark, in a process of their own: compiled, so that they are not what is measured.

They go through every frame and check that its number follows the one before. One record in `EVERY` is also read as
JSON, and its latency counts: with 1 every record of every client, with more each client begins with another number, so
that they do not all read the same records.

`python -m bench.gateway_clients URL COUNT CHANNEL SECONDS EVERY`: subscribes them all and prints `ready`, prints
`flowing` when each has had a record, counts from the next line of its input on, and prints one line of JSON: messages,
how many of them were read, seconds, and the latency from written to parsed in milliseconds.
"""

import asyncio
import base64
import json
import os
import struct
import sys
import time
from array import array
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import msgspec
import numba
import numpy as np
import uvloop

from strandline.wire.codecs import Bytes

FINAL_TEXT = 0x81


class _Sent(msgspec.Struct):
    at: float = 0.0


class _Told(msgspec.Struct):
    seq: int = 0
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


@numba.njit(
    "Tuple((int64, int64, int64, int64))(Array(uint8, 1, 'C', readonly=True), int64, int64, int64, int64)", cache=True
)
def _walk(data: Bytes, at: int, seq: int, every: int, phase: int) -> tuple[int, int, int, int]:
    """Go through whole frames of records and check that their numbers follow each other.

    Stops at each record that is to be read as a whole, one in `every`, and at a frame that is no record. Returns where
    to go on, the next number, and where that text begins and ends, or -1 when no whole frame is left.
    """
    size = len(data)
    while size - at >= 2:
        length, begin = int(data[at + 1]), at + 2
        if length >= 126:
            wide = 2 if length == 126 else 8
            if size - begin < wide:
                break
            length = 0
            for place in range(begin, begin + wide):
                length = length * 256 + int(data[place])
            begin += wide
        end = begin + length
        if end > size:
            break
        number = 0
        is_record = data[at] == 0x81 and length > 30 and data[begin + 2] == 115 and data[begin + 4] == 113  # s, q
        for place in range(begin + 7, begin + 19):
            if is_record and data[place] != 32:
                number = number * 10 + int(data[place]) - 48
        at = end
        if not is_record or number != seq or (seq + phase) % every == 0:
            return at, seq, begin, end
        seq += 1
    return at, seq, -1, -1


class Listener(asyncio.Protocol):
    """One client, which reads one record in `every` as JSON, from number `every - phase` on."""

    def __init__(self, host: str, first: bytes, *, every: int = 16, phase: int = 0) -> None:
        self._host = host
        self._first = first
        self._every = every
        self._phase = phase
        self._left = b""
        self._is_open = False
        self._seq = 1
        """The next."""
        self.messages = 0
        self.is_lost = False
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
        view = np.frombuffer(data, dtype=np.uint8)
        at = 0
        while True:
            at, seq, begin, end = _walk(view, at, self._seq, self._every, self._phase)
            self.messages += seq - self._seq
            self._seq = seq
            if begin < 0:
                break
            self._hear(data[begin:end])
        self._left = data[at:]

    def _hear(self, text: bytes) -> None:
        if not text:
            return  # the gateway asks whether we live: a trial on a busy machine lasts long enough for that
        told = _decode(text)
        if told.offset >= 0:
            if told.seq != self._seq:
                raise AssertionError(f"number {told.seq} in place of {self._seq}")
            self._seq += 1
            self.messages += 1
            if told.data is not None:
                self.delays.append(time.time() - told.data.at)
        else:
            self.told.append(text)
            if not self.subscribed.done():
                self.subscribed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if not self.subscribed.done():
            self.subscribed.set_exception(ConnectionError(f"closed: {exc}"))


async def sleep_until(listeners: list[Listener], holds: Callable[[], bool]) -> None:
    """Wait for a condition while all clients stay connected."""
    while not holds():
        if lost := sum(listener.is_lost for listener in listeners):
            raise AssertionError(f"{lost} of {len(listeners)} clients lost their connection")
        await asyncio.sleep(0.01)


async def main(url: str, count: int, channel: str, seconds: float, every: int) -> None:
    """Listen."""
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    hello = masked(json.dumps({"type": "subscribe", "data": {"channels": [channel]}}).encode())
    listeners = []
    for number in range(count):
        _, listener = await loop.create_connection(
            partial(Listener, place.netloc, hello, every=every, phase=number % every),
            place.hostname or "",
            place.port or 0,
        )
        await listener.subscribed
        listeners.append(listener)
    print("ready", flush=True)
    await sleep_until(listeners, lambda: all(listener.messages for listener in listeners))
    print("flowing", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    before, begin = sum(listener.messages for listener in listeners), time.perf_counter()
    for listener in listeners:
        del listener.delays[:]
    await asyncio.sleep(seconds)
    # On an overloaded machine a short trial may end before every client has read something.
    await sleep_until(listeners, lambda: all(listener.delays for listener in listeners))
    messages = sum(listener.messages for listener in listeners) - before
    took = time.perf_counter() - begin
    delays = np.concatenate([np.frombuffer(listener.delays) for listener in listeners])
    p50, p99 = (float(value) * 1000 for value in np.percentile(delays, [50, 99]))
    told = {"messages": messages, "read": len(delays), "seconds": took, "p50": p50, "p99": p99}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5])))
