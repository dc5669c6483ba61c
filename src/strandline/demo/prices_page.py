"""The page of `strandline demo gateway` behind a socket, with the gateway's client, and a way to cut the network."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

import msgspec

from strandline.demo.network import Network
from strandline.demo.prices import CHANNELS
from strandline.demo.serving import LOOPBACK
from strandline.errors import StrandlineError

CUT_S = 3.0
REQUEST_WITHIN_S = 10.0
HTML, SCRIPT, JSON = "text/html; charset=utf-8", "text/javascript; charset=utf-8", "application/json"


def client_script() -> bytes:
    """The gateway's client for browsers, as it is built."""
    # A wheel has it beside this module; in a checkout it lies where it is built, and nowhere else.
    for path in (files("strandline.demo") / "gateway.js", Path(__file__).parents[3] / "clients/js/lib/gateway.js"):
        if path.is_file():
            return path.read_bytes()
    raise StrandlineError("the gateway's client for browsers is not installed: install strandline anew")


@asynccontextmanager
async def page(listener: socket.socket, network: Network) -> AsyncIterator[None]:
    """Serve the page on a socket; its button cuts the network for a while."""
    loop = asyncio.get_running_loop()
    shown = (files("strandline.demo") / "prices.html").read_bytes()
    settings = {"url": f"ws://{LOOPBACK}:{network.port}", "channels": list(CHANNELS), "cut_s": CUT_S}
    contents = {
        "GET /": (HTML, shown),
        "GET /gateway.js": (SCRIPT, client_script()),
        "GET /settings.json": (JSON, msgspec.json.encode(settings)),
    }

    restoring: asyncio.TimerHandle | None = None

    def cut() -> None:
        nonlocal restoring
        if restoring is not None:
            restoring.cancel()
        network.cut()
        restoring = loop.call_later(CUT_S, network.restore)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_WITHIN_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                asked = " ".join(head.split(" ", 2)[:2])
                if asked == "POST /cut":
                    cut()
                    writer.write(_answer(HTTPStatus.OK, JSON, b"{}"))
                elif asked in contents:
                    writer.write(_answer(HTTPStatus.OK, *contents[asked]))
                else:
                    writer.write(_answer(HTTPStatus.NOT_FOUND, "text/plain", b"not here\n"))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield
    finally:
        server.close()


def _answer(status: HTTPStatus, kind: str, content: bytes) -> bytes:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + content
