"""A target as fast as Python allows: answers every request with two bytes and notes when each came.

`python -m bench.replay_target PORT_FILE LOG_FILE`; at SIGTERM it writes what came: connection, number in the path, and
the time on the wall in nanoseconds, three 64-bit integers a request.
"""

import asyncio
import re
import signal
import sys
import time
from array import array
from pathlib import Path

import uvloop

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NUMBER = re.compile(rb"/(\d+)[ ?]")

came = array("q")
connections = 0


class Peer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        global connections  # noqa: PLW0603
        connections += 1
        self.number = connections
        self.transport = transport
        self.rest = b""

    def data_received(self, data: bytes) -> None:
        now = time.time_ns()
        if self.rest:
            data = self.rest + data
        *requests, self.rest = data.split(b"\r\n\r\n")
        for request in requests:
            found = NUMBER.search(request, 0, 64)
            came.extend((self.number, int(found[1]) if found else -1, now))
        if requests:
            self.transport.write(ANSWER * len(requests))  # type: ignore[attr-defined]


async def main(port_file: Path, log: Path) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Peer, "127.0.0.1", 0, backlog=4096)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    port_file.write_text(str(server.sockets[0].getsockname()[1]))
    await stopped.wait()
    log.write_bytes(came.tobytes())


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
