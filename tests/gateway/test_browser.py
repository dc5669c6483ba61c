"""The browser's client in headless Chromium against a real gateway, with a network between them that is cut."""

import asyncio
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from websockets.exceptions import ConnectionClosed

from strandline.demo.network import Network
from strandline.gateway.server import Gateway
from strandline.stack import KafkaCluster
from tests.gateway.support import (
    FRESH_S,
    JWT,
    Site,
    browse_until,
    expire_all_but_fresh,
    plain,
    run,
    serving,
    token,
    write,
)
from tests.ordered.support import create_topic
from tests.report.browser import Browser
from tests.support import TIMEOUT

LISTEN = "return listen({ url: arguments[0] }).client.start()"
NOTE_STATES = """
const shown = document.getElementById("state");
window.states = [];
new MutationObserver(() => states.push(shown.dataset.state)).observe(shown, { attributes: true });
"""
RESUME_AT = """
const place = { token: null, positions: { [arguments[1]]: { 0: arguments[2] } } };
return listen({ url: arguments[0], store: { load: () => place, save: () => {} } }).client.start();
"""


def port_of(gateway: Gateway) -> int:
    return int(gateway.address.rpartition(":")[2])


def opened(chromium: Browser, site: Site) -> None:
    chromium.open(site.address)
    browse_until(chromium, "return window.isReady")


def test_a_browser_whose_network_is_cut_sees_every_record_once_and_in_order(
    kafka: KafkaCluster, chromium: Browser, site: Site
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    opened(chromium, site)
    rounds, some = 8, 150

    async def test() -> None:
        # So little is kept that some of it is read from Kafka, and some from memory.
        few = {"recent_bytes": 20_000, "limits": {"cold_every_s": 0.001}}
        async with serving(kafka.address, [topic], **few) as gateway, Network(port_of(gateway)) as network:
            await asyncio.to_thread(chromium.run, LISTEN, f"ws://127.0.0.1:{network.port}")
            await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) === 'live'")
            for round_ in range(rounds):
                numbers = range(round_ * some, (round_ + 1) * some)
                # One that is still on its way back is neither dropped nor cut off.
                await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) === 'live'")
                writing = asyncio.to_thread(write, kafka.address, topic, [(n % 2, "a", n) for n in numbers])
                match round_ % 4:
                    case 1:
                        await asyncio.gather(writing, asyncio.to_thread(chromium.run, "noted.client.drop()"))
                    case 3:
                        network.cut()
                        await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) !== 'live'")
                        await writing
                        network.restore()
                    case _:
                        await writing
                        await asyncio.to_thread(browse_until, chromium, f"return noted.seen.length > {round_ * some}")
            await asyncio.to_thread(browse_until, chromium, f"return noted.seen.length >= {rounds * some}")
            await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) === 'live'")

    run(test)
    seen, gaps, repeats, connects = chromium.run(
        "noted.client.stop(); return [noted.seen, noted.gaps, noted.client.repeats, noted.client.connects]"
    )
    for partition in range(2):
        of_it = [(int(offset), data) for number, offset, data in seen if number == partition]
        assert of_it == list(enumerate(range(partition, rounds * some, 2)))
    assert (gaps, repeats) == ([], 0)
    assert connects >= 1 + rounds // 2


def test_a_browser_is_told_exactly_what_was_deleted_meanwhile(
    kafka: KafkaCluster, chromium: Browser, site: Site
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(30)])
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for future in admin.delete_records([TopicPartition(topic, 0, 20)]).values():
        future.result(TIMEOUT)
    opened(chromium, site)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            await asyncio.to_thread(chromium.run, RESUME_AT, gateway.address, topic, "5")
            await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) === 'live'")

    run(test)
    seen, gaps = chromium.run("noted.client.stop(); return [noted.seen, noted.gaps]")
    assert gaps == [{"topic": topic, "partition": 0, "from": "5", "to": "19", "reason": "deleted"}]
    assert seen == [[0, str(n), n] for n in range(20, 30)]


def test_a_browser_shows_fresh_tokens_and_reads_topics_of_any_name(
    kafka: KafkaCluster, chromium: Browser, site: Site
) -> None:
    topics = ["constructor", "__proto__"]
    for topic in topics:
        create_topic(kafka.address, topic)
    opened(chromium, site)
    script = """
    const tokens = arguments[1];
    // Its clock is ahead of the gateway's, so that its first token is old long before it has expired.
    const now = Date.now;
    Date.now = () => now() + 595_000;
    return listen({ url: arguments[0], accessToken: () => tokens.shift() }).client.start();
    """

    async def test() -> None:
        async with serving(kafka.address, topics, **JWT) as gateway:
            short, long = token(["a"]), token(["a"], valid_s=FRESH_S)
            await asyncio.to_thread(chromium.run, script, gateway.address, [short, long])
            await asyncio.to_thread(browse_until, chromium, "return noted.states.at(-1) === 'live'")
            # Another that shows the same token at the door, and no other later.
            async with plain(gateway, f"?access_token={short}") as other:
                await expire_all_but_fresh(gateway)
                with pytest.raises(ConnectionClosed):
                    await other.hear()
            for topic in topics:
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", f"{topic} {n}") for n in range(3)])
            await asyncio.to_thread(browse_until, chromium, "return noted.seen.length >= 6")
            assert chromium.run("return noted.client.connects") == 1
            await asyncio.to_thread(
                chromium.run, "noted.client.options.accessToken = () => arguments[0]; noted.client.drop()", long
            )
            await asyncio.to_thread(
                browse_until, chromium, "return noted.client.connects === 2 && noted.states.at(-1) === 'live'"
            )

    run(test)
    seen, gaps, repeats, refused = chromium.run(
        "noted.client.stop(); return [noted.seen, noted.gaps, noted.client.repeats, noted.refused]"
    )
    assert sorted(data for _, _, data in seen) == sorted(f"{topic} {n}" for topic in topics for n in range(3))
    assert (gaps, repeats, refused) == ([], 0, [])


@contextmanager
def demo() -> Iterator[str]:
    """The address of a demo that runs; Ctrl-C has ended it in good order afterwards."""
    command = [sys.executable, "-m", "strandline", "demo", "gateway", "--seconds", str(10 * TIMEOUT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = None
            while found is None:
                assert select.select([process.stdout], [], [], TIMEOUT)[0], "it says nothing"
                line = process.stdout.readline()
                assert line, "it ended before it said where it is"
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
            yield found[0]
            process.send_signal(signal.SIGINT)
            assert "messages delivered on" in process.stdout.read()
            assert process.wait(TIMEOUT) == 0
        finally:
            if process.poll() is None:
                process.kill()


def test_the_demo_misses_nothing_when_its_network_is_cut(chromium: Browser) -> None:
    with demo() as address:
        chromium.resize(1280, 900)
        chromium.open(address)
        counted = "return Number(document.getElementById('messages').textContent.replace(',', ''))"
        browse_until(chromium, f"{counted} > 30")
        # Noted in the page: the network comes back by itself, and whoever looks now and then may come too late.
        chromium.run(NOTE_STATES)
        chromium.click("#cut")
        browse_until(chromium, "return states.includes('waiting')")
        before = chromium.run(counted)
        browse_until(chromium, "return document.getElementById('state').dataset.state === 'live'")
        browse_until(chromium, f"{counted} > {before} + 50")
        assert chromium.texts("#gaps, #repeats") == ["0", "0"]
        assert int(chromium.texts("#replayed")[0]) > 0
        assert len(chromium.texts(".card")) == 6
        chromium.open("about:blank")
