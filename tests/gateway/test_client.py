"""The client for asyncio: what it gives its application, when it comes back, and when it gives up."""

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
import yaml
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from strandline.errors import GatewayRefused, OptionError
from strandline.gateway import client as module
from strandline.gateway.address import shown
from strandline.gateway.client import GatewayClient, Message, Missed
from strandline.gateway.place import Place
from strandline.stack import KafkaCluster
from strandline.stack.ports import free_port
from tests.gateway.support import FRESH_S, JWT, expire_all_but_fresh, plain, run, serving, token, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT

Handler = Callable[[ServerConnection], Awaitable[None]]


def record(offset: int, data: object = None) -> str:
    return json.dumps(
        {"seq": 1, "ts": 1, "type": "m", "channel": "a", "topic": "t", "partition": 0, "offset": offset, "data": data}
    )


@asynccontextmanager
async def scripted(handler: Handler) -> AsyncIterator[str]:
    """A gateway that says what a test wants."""
    async with serve(handler, "127.0.0.1", 0, close_timeout=0.1) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        yield f"ws://{host}:{port}"


async def first(client: GatewayClient) -> Message:
    async for item in client:
        assert isinstance(item, Message)
        return item
    raise AssertionError("it ended")


def test_the_example_of_the_readme_prints_the_prices_that_are_written(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text()
    prices, file, watch = (
        f"{name}{page.partition(name)[2].partition('```')[0]}"
        for name in ("# prices.py", "# gateway.yaml", "# watch.py")
    )
    monkeypatch.setenv("STRANDLINE_KAFKA", kafka.address)
    sections, has_begun, is_over = yaml.safe_load(file), Event(), Event()
    prices = prices.replace("range(600)", "ticks()").replace("time.sleep(1)", "time.sleep(0.05)")
    printed: list[tuple[str, dict[str, int]]] = []

    class Enough(Exception):
        pass

    def ticks() -> Iterator[int]:
        for n in itertools.takewhile(lambda _: not is_over.is_set(), itertools.count()):
            yield n
            has_begun.set()

    def show(channel: str, data: dict[str, int]) -> None:
        printed.append((channel, data))
        if len(printed) == 3:
            raise Enough

    async def test() -> None:
        writing = asyncio.ensure_future(asyncio.to_thread(exec, prices, {"ticks": ticks}))
        try:
            assert await asyncio.to_thread(has_begun.wait, TIMEOUT)
            async with serving(kafka.address, sections["topics"], auth=sections["auth"]) as gateway:
                example: dict[str, Any] = {"print": show}
                code = watch.replace("ws://127.0.0.1:8090", gateway.address).replace("asyncio.run(main())", "")
                exec(code, example)  # noqa: S102  (our own example)
                with pytest.raises(Enough):
                    await example["main"]()
        finally:
            is_over.set()
            await writing

    run(test)
    begun = printed[0][1]["price"]
    assert printed == [("BTC.USD", {"price": begun + n}) for n in range(3)]


def test_a_value_that_is_no_json_comes_as_the_bytes_that_it_was(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    values: list[bytes | None] = [b"\x00\xff\xfe", b'{"a":1}', None, b"plain words", b""]

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, GatewayClient(gateway.address, ["a"]) as client:
            client._place.positions = {topic: {0: 0}}
            producer = Producer({"bootstrap.servers": kafka.address})
            for value in values:
                producer.produce(topic, value, key="a", partition=0)
            assert await asyncio.to_thread(producer.flush, TIMEOUT) == 0
            found = []
            async for item in client:
                assert isinstance(item, Message)
                found.append(item.data)
                if len(found) == len(values):
                    break
            assert found == [b"\x00\xff\xfe", {"a": 1}, None, b"plain words", b""]

    run(test)


@pytest.mark.parametrize("code", ["unknown_partition", "not_allowed", "bad_message", "no_channels"])
def test_what_trying_again_does_not_help_ends_it_at_once(code: str) -> None:
    async def handler(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(json.dumps({"type": "error", "code": code, "message": "there is none"}))
        await connection.wait_closed()

    async def test() -> None:
        async with scripted(handler) as url, GatewayClient(url, ["a"]) as client:
            with pytest.raises(GatewayRefused, match="there is none"):
                await first(client)
            assert client.connects == 1

    run(test)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:1/?access_token=hush", "http://127.0.0.1:1/"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("ws://me:hush@there:80a", "there:80a"),
        ("ws://there:99999", "ws://there:99999"),
        ("ws://[::1", "ws://[::1"),
        ("ws://", "ws://"),
        ("", ""),
    ],
)
def test_what_is_no_address_of_a_gateway_is_told_before_anything_is_tried(url: str, told: str) -> None:
    line = f"url '{told}' is no address of a gateway: ws://HOST:PORT, or wss:// with TLS"
    with pytest.raises(OptionError, match=f"^{re.escape(line)}$"):
        GatewayClient(url, ["a"])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("WS://there", "ws://there:80"),
        ("wss://me:hush@there/a/?access_token=hush", "wss://there:443/a"),
        ("ws://[::1]:8090", "ws://[::1]:8090"),
    ],
)
def test_no_secret_of_an_address_is_shown(url: str, told: str) -> None:
    assert shown(url) == told


def test_tls_to_a_gateway_without_it_ends_it_and_tells_no_secret_of_its_address(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            safe = gateway.address.replace("ws:", "wss:")
            async with GatewayClient(f"{safe}/?access_token=hush", ["a"]) as client:
                with pytest.raises(GatewayRefused, match=f"^{safe} refuses: there is no TLS on this port: write ws:$"):
                    await first(client)

    run(test)


def test_why_it_tries_again_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    url = f"ws://127.0.0.1:{free_port()}"

    async def test() -> None:
        async with GatewayClient(url, ["a"]) as client:
            listening = asyncio.create_task(first(client))
            while client._attempts < 3:
                await asyncio.sleep(0.01)
            listening.cancel()

    run(test)
    (line,) = [line for line in caplog.messages if line.startswith(url)]
    assert line.endswith("; trying again")


def test_nobody_comes_back_before_the_gateway_will_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = 0
    waits: list[float] = []

    async def handler(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await connection.recv()
        if connections == 1:
            error = {"type": "error", "code": "replay_limited", "message": "later", "retry_after": 700}
            await connection.send(json.dumps(error))
        else:
            await connection.send(record(0))
        await connection.wait_closed()

    async def waited(seconds: float) -> None:
        waits.append(seconds)

    async def test() -> None:
        async with scripted(handler) as url, GatewayClient(url, ["a"]) as client:
            with monkeypatch.context() as clock:
                clock.setattr(module, "asyncio", _Clock(waited))
                await first(client)
        (wait,) = waits
        assert wait >= 700

    run(test)


def test_a_connection_that_answers_no_more_is_left() -> None:
    connections = 0

    async def handler(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await connection.recv()
        if connections == 1:
            # Whatever the client says now stays unread, and unanswered.
            connection.transport.pause_reading()
        else:
            await connection.send(record(0))
        with suppress(ConnectionClosed):
            await connection.wait_closed()

    async def test() -> None:
        brief = timedelta(seconds=0.2)
        async with scripted(handler) as url, GatewayClient(url, ["a"], quiet=brief, answer=brief) as client:
            await first(client)
            # Also the one after it is left where the machine is slow.
            assert client.connects >= 2

    run(test)


@pytest.mark.parametrize("code", [1000, 1001, 1011])
def test_however_a_connection_ends_the_next_comes_after_a_wait_that_grows_and_is_drawn(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = 0
    longest: list[float] = []
    draw = 0.5

    async def handler(connection: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await connection.recv()
        if connections == 6:
            await connection.send(record(0))
        await connection.close(code)

    async def waited(seconds: float) -> None:
        longest.append(seconds / draw)

    async def test() -> None:
        async with scripted(handler) as url, GatewayClient(url, ["a"]) as client:
            items = aiter(client)
            with monkeypatch.context() as clock:
                clock.setattr(module, "asyncio", _Clock(waited))
                clock.setattr(random, "random", lambda: draw)
                assert isinstance(await anext(items), Message)
            assert client.connects == 6
        assert longest == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])

    run(test)


class _Clock:
    """What the client has of asyncio, with another sleep."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)


def test_a_place_is_stored_when_the_application_is_done_with_a_message_and_what_comes_twice_is_dropped() -> None:
    class Noting:
        """A store of the application's own."""

        def __init__(self) -> None:
            self.saved: list[int] = []

        async def load(self) -> Place:
            return Place(None, {"t": {0: 3}})

        async def save(self, place: Place) -> None:
            self.saved.append(place.next("t", 0))

    store = Noting()

    async def handler(connection: ServerConnection) -> None:
        assert json.loads(await connection.recv())["data"]["positions"] == {"t": {"0": 3}}
        for offset in (2, 3, 3, 4, 2, 5):
            await connection.send(record(offset))
        await connection.wait_closed()

    async def test() -> None:
        async with scripted(handler) as url, GatewayClient(url, ["a"], store=store) as client:
            found = []
            async for item in client:
                assert isinstance(item, Message)
                # What it has in its hands is not stored yet.
                assert store.saved == list(range(4, item.offset + 1))
                found.append(item.offset)
                if item.offset == 5:
                    break
            assert found == [3, 4, 5]
            assert client.repeats == 3
        assert store.saved == [4, 5]

    run(test)


def test_it_leaves_in_good_order_however_much_it_has_not_read() -> None:
    closed: list[int] = []

    async def handler(connection: ServerConnection) -> None:
        await connection.recv()
        # The client may leave while there is more to send than the kernel takes.
        with suppress(ConnectionClosed):
            for offset in range(2000):
                await connection.send(record(offset, "x" * 1000))
        await connection.wait_closed()
        closed.append(connection.close_code or 0)

    async def test() -> None:
        # Who waited for that would wait for longer than the test may take.
        async with scripted(handler) as url, GatewayClient(url, ["a"], answer=timedelta(hours=1)) as client:
            await first(client)
        while not closed:
            await asyncio.sleep(0.01)
        assert closed == [1000]

    run(test)


def test_whoever_listens_hears_the_end_when_it_is_left_while_it_connects_or_waits_to() -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()
    has_left = False

    async def hold(*_: object) -> None:
        is_asked.set()
        await may_answer.wait()

    async def put_off(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await connection.recv()
            if has_left:
                error = {"type": "error", "code": "busy", "message": "later", "retry_after": 3600}
                await connection.send(json.dumps(error))
            await connection.wait_closed()

    async def listen(client: GatewayClient) -> list[Message | Missed]:
        return [item async for item in client]

    async def test() -> None:
        nonlocal has_left
        async with serve(put_off, "127.0.0.1", 0, process_request=hold, close_timeout=0.1) as server:
            host, port = next(iter(server.sockets)).getsockname()[:2]
            async with GatewayClient(f"ws://{host}:{port}", ["a"]) as client:
                listening = asyncio.create_task(listen(client))
                await is_asked.wait()
            may_answer.set()
            assert await listening == []
            has_left = True
            async with GatewayClient(f"ws://{host}:{port}", ["a"]) as client:
                listening = asyncio.create_task(listen(client))
                while client._waiting is None:
                    await asyncio.sleep(0.01)
            assert await listening == []

    run(test)


def test_a_fresh_token_is_shown_before_the_last_one_ends_on_the_same_connection(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    given_out: list[str] = []

    async def access_token() -> str:
        given_out.append(token(["a"], valid_s=FRESH_S if given_out else 60))
        return given_out[-1]

    async def test() -> None:
        monkeypatch.setattr(module, "REFRESH_AFTER", 0.01)
        async with (
            serving(kafka.address, [topic], **JWT) as gateway,
            GatewayClient(gateway.address, ["a"], access_token=access_token) as client,
        ):
            listening = asyncio.create_task(first(client))
            while not given_out:
                await asyncio.sleep(0.01)
            # Another that shows the same token at the door, and no other later.
            async with plain(gateway, f"?access_token={given_out[0]}") as other:
                await expire_all_but_fresh(gateway)
                with pytest.raises(ConnectionClosed) as caught:
                    await other.hear()
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 4001
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 1)])
            assert (await listening).data == 1
            assert (client.connects, len(given_out)) == (1, 2)

    run(test)


def test_without_another_token_one_that_has_expired_ends_it(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)

    async def test() -> None:
        async with serving(kafka.address, [topic], **JWT) as gateway:
            url = f"{gateway.address}?access_token={token(['a'])}"
            async with GatewayClient(url, ["a"]) as client:
                listening = asyncio.create_task(first(client))
                while not gateway.hub.sessions:
                    await asyncio.sleep(0.01)
                gateway.now = lambda: int(time.time() + FRESH_S)  # type: ignore[method-assign]
                with pytest.raises(GatewayRefused, match="expired"):
                    await listening

    run(test)


def test_a_fresh_token_that_allows_less_is_no_silent_loss(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    given_out: list[str] = []

    async def access_token() -> str:
        given_out.append(token([] if given_out else ["a"], valid_s=60))
        return given_out[-1]

    async def test() -> None:
        monkeypatch.setattr(module, "REFRESH_AFTER", 0.01)
        async with (
            serving(kafka.address, [topic], **JWT) as gateway,
            GatewayClient(gateway.address, ["a"], access_token=access_token) as client,
        ):
            with pytest.raises(GatewayRefused, match="no longer allows a"):
                await first(client)

    run(test)


@given(st.permutations(range(3)), st.integers(0, 3))
def test_of_a_topic_made_anew_no_old_offset_is_asked_for_again(order: list[int], heard: int) -> None:
    place = Place("old", {"t": {0: 100, 1: 200, 2: 300}, "other": {0: 7}})
    for partition in order[:heard]:
        place.pass_over("t", partition, 100, None, "recreated")
        place.reach("t", partition, partition + 1)
    expected = {n: n + 1 for n in order[:heard]} if heard else {0: 100, 1: 200, 2: 300}
    assert place.positions == {"t": expected, "other": {0: 7}}
    assert (place.token is None) == bool(heard)


def test_what_is_known_of_the_new_topic_stays_when_the_rest_is_told_on_another_connection() -> None:
    place = Place("old", {"t": {0: 100, 1: 200, 2: 300}})
    place.pass_over("t", 0, 100, None, "recreated")
    place.reach("t", 0, 6)
    # A token tells of each partition which topic it was read of; the next connection goes on from it.
    place.token, place.positions["t"] = "between", {0: 6, 1: 200, 2: 300}
    place.resume()
    place.pass_over("t", 1, 200, None, "recreated")
    assert place.positions == {"t": {0: 6}}
    # Once more, and told of in another order.
    place.pass_over("t", 1, 1, None, "recreated")
    assert place.positions == {"t": {}}
