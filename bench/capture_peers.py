"""The other two processes of bench/capture.py: a bare upstream, and a load for machines without wrk.

`python -m bench.capture_peers upstream` prints its port; `... load PORT METHOD CONNECTIONS SECONDS` prints figures.
"""

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

BODY = b'{"gauge":"north","level":1.42}'
REQUESTS = {
    "GET": b"GET /gauges/north HTTP/1.1\r\nHost: bench\r\n\r\n",
    "POST": b"POST /gauges HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
}
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Upstream(asyncio.Protocol):
    """Answers each request, by the bytes that end those of this bench."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._held = b""

    def data_received(self, data: bytes) -> None:
        data = self._held + data
        asked = data.count(BODY) if data.startswith(b"POST") else data.count(b"\r\n\r\n")
        is_whole = data.endswith((BODY, b"\r\n\r\n")) and not (data.startswith(b"POST") and data.endswith(b"\r\n\r\n"))
        self._held = b"" if is_whole else data
        if is_whole:
            self._transport.write(ANSWER * asked)


class Client(asyncio.Protocol):
    """Asks again as soon as it is answered."""

    def __init__(self, request: bytes, taken_s: list[float]) -> None:
        self._request = request
        self._taken_s = taken_s
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self._got += len(data)
        if self._got >= len(ANSWER):
            self._taken_s.append(time.perf_counter() - self._since)
            self._got = 0
            self._ask()

    def _ask(self) -> None:
        self._since = time.perf_counter()
        self._transport.write(self._request)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def load(port: int, method: str, connections: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    taken_s: list[float] = []
    for _ in range(connections):
        await loop.create_connection(lambda: Client(REQUESTS[method], taken_s), "127.0.0.1", port)
    await asyncio.sleep(seconds)
    ordered = sorted(taken_s)
    at = {"p50_ms": 0.50, "p99_ms": 0.99}
    told = {name: ordered[int(part * (len(ordered) - 1))] * 1000 for name, part in at.items()}
    print(json.dumps({"per_s": len(ordered) / seconds, **told}))


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        uvloop.run(serve())
    else:
        uvloop.run(load(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])))
