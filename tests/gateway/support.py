"""A gateway in the test's own loop, a plain client that says and hears what a test wants, and a site for browsers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Self

import uvloop
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from websockets.asyncio.client import ClientConnection, connect

from strandline.config import load
from strandline.demo.prices_page import client_script
from strandline.gateway.config import GatewayConfig, settings_of
from strandline.gateway.server import Gateway
from tests.support import TIMEOUT

Heard = dict[str, Any]
ANYONE = {"auth": {"anonymous": True}}


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on the loop that the gateway runs on."""

    async def within() -> None:
        async with asyncio.timeout(TIMEOUT * 4):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(within())


@asynccontextmanager
async def serving(kafka: str, topics: Iterable[str], **config: Any) -> AsyncIterator[Gateway]:
    """A gateway on a free port."""
    sections: dict[str, dict[str, str]] = {topic: {} for topic in topics}
    with TemporaryDirectory() as directory:
        file = Path(directory, "gateway.yaml")
        file.write_text(json.dumps({**ANYONE, "topics": sections, **config}))
        checked = load(file, GatewayConfig)
    async with Gateway(settings_of(checked, {"bootstrap.servers": kafka}, ("127.0.0.1", 0), Path())) as gateway:
        yield gateway


def write(kafka: str, topic: str, records: Iterable[tuple[int, str, object]]) -> None:
    """Write records, each given as partition, key and what its value says as JSON."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 1})
    for partition, key, value in records:
        producer.produce(topic, json.dumps(value), key=key, partition=partition)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0


def delete(kafka: str, topic: str, up_to: int) -> None:
    """Delete the records of partition 0 before an offset."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, up_to)]).values():
        future.result(TIMEOUT)


class Plain:
    """A client that keeps nothing."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, kind: str, **data: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, "data": data}))

    async def hear(self) -> Heard:
        async with asyncio.timeout(TIMEOUT):
            heard: Heard = json.loads(await self.connection.recv())
        return heard

    async def until(self, *kinds: str) -> list[Heard]:
        """All that comes up to the first of some kind."""
        heard = [await self.hear()]
        while heard[-1]["type"] not in kinds:
            heard.append(await self.hear())
        return heard

    async def records(self, count: int) -> list[Heard]:
        """So many records; what else comes is passed over."""
        found: list[Heard] = []
        while len(found) < count:
            heard = await self.hear()
            if "offset" in heard:
                found.append(heard)
        return found


@asynccontextmanager
async def plain(gateway: Gateway, query: str = "") -> AsyncIterator[Plain]:
    async with connect(gateway.address + query, compression=None, max_size=None) as connection:
        yield Plain(connection)


async def reached(gateway: Gateway, count: int) -> None:
    """Wait until so many records have come to the gateway."""
    while sum(feed.end for feed in gateway.hub.feeds.values()) < count:
        await asyncio.sleep(0.01)


class Site:
    """A page for a browser that has loaded the gateway's client, and what `trial.js` offers."""

    def __init__(self) -> None:
        contents = {
            "/": (
                "text/html",
                b'<!doctype html><link rel="icon" href="data:,"><script type="module" src="/trial.js"></script>',
            ),
            "/gateway.js": ("text/javascript", client_script()),
            "/trial.js": ("text/javascript", Path(__file__).with_name("trial.js").read_bytes()),
        }

        class Pages(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, content = contents[self.path]
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(TIMEOUT)
