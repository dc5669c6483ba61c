"""The limit of a machine: a bare loop that sends at absolute times, with no log, no order to keep, and no results.

`python -m bench.replay_bare PORT DUE_FILE WALL`: the times of DUE_FILE, 64-bit nanoseconds, counted from WALL.

`python -m bench.replay_bare PORT COUNT`: so many requests as fast as they are answered, one at a time on each
connection; an answer is whatever comes, and is not looked at. Prints requests a second.
"""

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import uvloop

from bench.replay import ANSWER, CONNECTIONS, request

ANSWERED_WITHIN_S = 60.0


class Counting(asyncio.Protocol):
    """Counts the bytes of the answers of all connections, until so many have come."""

    received = 0

    def __init__(self, awaited: int, done: asyncio.Event) -> None:
        self._awaited = awaited
        self._done = done

    def data_received(self, data: bytes) -> None:
        Counting.received += len(data)
        if Counting.received == self._awaited:
            self._done.set()


async def main(port: int, due: list[int], wall: int) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    make = partial(Counting, len(ANSWER) * len(due), done)
    opened = [await loop.create_connection(make, "127.0.0.1", port) for _ in range(CONNECTIONS)]
    for number, at in enumerate(due):
        while (wait := (wall + at - time.time_ns()) / 1e9) > 0:
            await asyncio.sleep(wait)
        opened[number % CONNECTIONS][0].write(request(number))
    await asyncio.wait_for(done.wait(), ANSWERED_WITHIN_S)


class Again(asyncio.Protocol):
    """Sends the next request when something has come."""

    def __init__(self, left: "list[int]", done: asyncio.Event) -> None:
        self._left = left
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:  # noqa: ARG002  (asyncio's signature)
        if self._left:
            self._write(request(self._left.pop()))
        else:
            self._done.set()


async def as_fast_as_answered(port: int, count: int) -> None:
    loop, done, left = asyncio.get_running_loop(), asyncio.Event(), list(range(count))
    begin = time.perf_counter()
    for _ in range(CONNECTIONS):
        await loop.create_connection(lambda: Again(left, done), "127.0.0.1", port)
    await done.wait()
    print(count / (time.perf_counter() - begin))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        uvloop.run(as_fast_as_answered(int(sys.argv[1]), int(sys.argv[2])))
        sys.exit()
    times = np.fromfile(Path(sys.argv[2]), dtype=np.int64).tolist()
    uvloop.run(main(int(sys.argv[1]), times, int(sys.argv[3])))
