"""A gateway in the test's own loop, a plain client that says and hears what a test wants, and a site for browsers."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, Self

import jwt
import uvloop
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from websockets.asyncio.client import ClientConnection, connect

from strandline.config import load
from strandline.core.channel import Template
from strandline.demo.prices_page import client_script
from strandline.gateway.config import GatewayConfig, settings_of
from strandline.gateway.feed import Naming
from strandline.gateway.server import Gateway
from strandline.gateway.verify import Outcome, Trial, verify
from tests.ordered.support import create_topic
from tests.report.browser import Browser
from tests.support import TIMEOUT, wait_for

Heard = dict[str, Any]
ANYONE = {"auth": {"anonymous": True}}
SECRET = "a secret that is at least thirty-two long"
# For tokens that outlive all others of a test.
FRESH_S = 86_400.0
NAMING = Naming(*map(Template.parse, ("{key}", "message", "NORMAL")))
# What a gateway does on its own clock, so late that a slow machine is not taken for a slow client.
PATIENT = {"handshake_s": 60, "page_s": 60, "cold_wait_s": 60}
JWT = {"auth": {"jwt": {"algorithms": ["HS256"], "secret": SECRET}}}


def run(test: Callable[[], Awaitable[None]], *, within: float = 2 * TIMEOUT) -> None:
    """Run a test on the loop that the gateway runs on; for so long that pytest's own limit does not come first."""

    async def bounded() -> None:
        async with asyncio.timeout(within):
            await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@asynccontextmanager
async def serving(
    kafka: str, topics: Iterable[str] | Mapping[str, dict[str, str]], **config: Any
) -> AsyncIterator[Gateway]:
    """A gateway on a free port; topics may have rules how their records are named. Its limits are patient ones."""
    sections = topics if isinstance(topics, Mapping) else {topic: {} for topic in topics}
    with TemporaryDirectory() as directory:
        file = Path(directory, "gateway.yaml")
        file.write_text(
            json.dumps({**ANYONE, "topics": sections, **config, "limits": {**PATIENT, **config.get("limits", {})}})
        )
        checked = load(file, GatewayConfig)
    async with Gateway(settings_of(checked, {"bootstrap.servers": kafka}, ("127.0.0.1", 0), Path())) as gateway:
        yield gateway


def write(kafka: str, topic: str, records: Iterable[tuple[int, str, object]]) -> None:
    """Write records, each given as partition, key and what its value says as JSON."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 1})
    for partition, key, value in records:
        producer.produce(
            topic,
            json.dumps(value),
            key=key,
            partition=partition,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    assert not failures


def delete(kafka: str, topic: str, up_to: int) -> None:
    """Delete the records of partition 0 before an offset."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.delete_records([TopicPartition(topic, 0, up_to)]).values():
        future.result(TIMEOUT)


def create_when_gone(kafka: str, topic: str) -> None:
    """Make a topic anew whose deletion is still under way."""

    def is_made() -> bool:
        try:
            create_topic(kafka, topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_for(is_made, f"{topic} is made anew")


def token(
    channels: list[str], *, subject: str = "me", valid_s: float = 600, key: str = SECRET, **claims: object
) -> str:
    """A token for the door of a gateway that runs with `JWT`."""
    # In whole seconds, as the gateway reads it, and no less than was asked for.
    told = {"sub": subject, "channels": channels, "exp": math.ceil(time.time() + valid_s), **claims}
    return jwt.encode(told, key, algorithm="HS256")


async def expire_all_but_fresh(gateway: Gateway) -> None:
    """Wait until a client has shown a token that is good for `FRESH_S`, and let the tokens of all others expire."""
    async with asyncio.timeout(TIMEOUT):
        while all((one.identity.expires or 0) < time.time() + FRESH_S / 2 for one in gateway.hub.sessions):
            await asyncio.sleep(0.01)
    gateway.now = lambda: int(time.time() + FRESH_S / 2)  # type: ignore[method-assign]


async def verify_until(
    trial: Trial, is_enough: Callable[[Outcome], bool], *troubles: Callable[[], Awaitable[None]]
) -> Outcome:
    """Run a trial with some trouble, and go on until enough has happened: how soon is the machine's affair."""
    so_far: list[Outcome] = []

    async def meanwhile() -> None:
        for trouble in troubles:
            await trouble()
        while not so_far or not is_enough(so_far[-1]):
            await asyncio.sleep(0.1)

    return await verify(trial, meanwhile(), so_far.append)


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


def browse_until(browser: Browser, script: str) -> None:
    """Wait until a script returns something that is true."""
    wait_for(lambda: browser.run(script), script)


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
