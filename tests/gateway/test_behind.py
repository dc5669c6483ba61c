"""What a process of a gateway does that knows less than its client: it looks first, and says nothing that is not so."""

import asyncio
from collections.abc import Collection
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from strandline.errors import AuthenticationFailed, BrokerUnreachable, KafkaError
from strandline.gateway import dialogue, tail
from strandline.gateway.client import GatewayClient, Message, Missed
from strandline.gateway.server import Gateway
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster
from tests.gateway.support import create_when_gone, plain, reached, run, serving, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT
from tests.topics import add_partitions

KEYS = {"token_keys": {"k": "k" * 32}}


@pytest.fixture
def topic(kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of gateways that look for nothing by themselves."""
    monkeypatch.setattr(tail, "LOOK_EVERY_S", 600.0)
    # Whoever waits until one of them has looked waits for as long as that takes.
    monkeypatch.setattr(dialogue, "LOOK_S", TIMEOUT)
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


async def _knows(gateway: Gateway, count: int) -> None:
    """Wait until a gateway that was told to look has seen all partitions."""
    while len(gateway.hub.feeds) < count:
        await gateway.look()


def test_a_partition_that_another_process_has_seen_already_is_looked_for_before_it_is_unknown(
    kafka: KafkaCluster, topic: str
) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic]) as ahead, serving(kafka.address, [topic]) as here:
            await asyncio.to_thread(add_partitions, kafka.settings(), topic, 2)
            await _knows(ahead, 2)
            async with plain(ahead) as client:
                await client.say("subscribe", channels=["a"])
                positions = (await client.until("subscribed"))[-1]["positions"]
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", n) for n in range(5)])
            assert len(here.hub.feeds) == 1
            async with plain(here) as client:
                await client.say("resume", channels=["a"], positions=positions)
                # What is said meanwhile is done behind it.
                await client.say("subscribe", channels=["b"])
                heard = await client.until("subscribed")
                assert {*heard[-1]["positions"][topic]} == {"0", "1"}
                heard += await client.records(5 - sum("offset" in message for message in heard))
                assert [message["data"] for message in heard if "offset" in message] == list(range(5))
                await client.say("resume", channels=["a"], positions={topic: {"2": 0}})
                told = (await client.until("error"))[-1]
                assert (told["code"], "retry_after" in told) == ("unknown_partition", False)

    run(test)


def test_a_topic_that_another_process_has_seen_anew_already_is_not_told_to_be_anew(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(3)])

    async def test() -> None:
        async with serving(kafka.address, [topic], **KEYS) as here:
            old = here.hub.topics()[topic][0]

            async def found_out() -> None:
                while here.hub.topics()[topic][0] is old:
                    await asyncio.sleep(0.01)

            # Its readers would find out by themselves.
            monkeypatch.setattr(here.tail, "_refresh", found_out)
            admin = AdminClient({"bootstrap.servers": kafka.address})
            admin.delete_topics([topic])[topic].result(TIMEOUT)
            await asyncio.to_thread(create_when_gone, kafka.address, topic)
            async with serving(kafka.address, [topic], **KEYS) as ahead, plain(ahead) as client:
                await client.say("subscribe", channels=["a"])
                token = (await client.until("subscribed"))[-1]["token"]
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(5)])
            assert here.hub.topics()[topic][0] is old
            async with plain(here) as client:
                await client.say("resume", channels=["a"], token=token)
                heard = [message for message in await client.until("resume_ack", "error") if message["type"] != "token"]
                assert heard[-1].get("status") == "completed"
                heard[-1:] = await client.records(5 - len(heard[:-1]))
                assert [message.get("data") for message in heard] == list(range(5))

    run(test)


@pytest.mark.parametrize("error", [BrokerUnreachable("broker", "away"), AuthenticationFailed("not you")])
def test_while_kafka_does_not_say_what_there_is_a_client_is_put_off_and_the_gateway_goes_on(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch, error: KafkaError
) -> None:
    async def refuse(_: Cluster, __: Collection[str]) -> list[Partition]:
        raise error

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            with monkeypatch.context() as brief:
                brief.setattr(Cluster, "partitions", refuse)
                for kind, asked, answer in (
                    ("resume", {"channels": ["a"], "positions": {topic: {"1": 0}}}, "error"),
                    ("reconnect", {"last_offset": {topic: {"1": 0}}}, "reconnect_error"),
                ):
                    await client.say(kind, **asked)
                    told = (await client.until("error", "reconnect_error"))[-1]
                    assert (told["type"], told["code"]) == (answer, "unavailable")
                    assert told["retry_after"] > 0
                # What it does now and then.
                await gateway.tail._refresh()
                assert gateway.not_ready() == [str(error)]
            assert not gateway.tail.failed.done()
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 1)])
            assert (await client.records(1))[0]["data"] == 1
            assert gateway.not_ready() == []

    run(test)


def test_what_a_client_says_while_kafka_is_asked_is_held_up_to_a_bound(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer_late(_: Cluster, __: Collection[str]) -> list[Partition]:
        is_asked.set()
        await may_answer.wait()
        raise BrokerUnreachable("broker", "away")

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            monkeypatch.setattr(Cluster, "partitions", answer_late)
            await client.say("resume", channels=["a"], positions={topic: {"1": 0}})
            await is_asked.wait()
            for number in range(dialogue.MOST_HELD + 1):
                await client.say("subscribe", channels=[f"held-{number}"])
            told = (await client.until("error", "subscribed"))[-1]
            assert (told["type"], told["code"]) == ("error", "unavailable")
            may_answer.set()
            heard = await client.until("error")
            assert heard[-1]["code"] == "unavailable"
            for number in range(dialogue.MOST_HELD):
                assert (await client.until("subscribed"))[-1]["channels"] == [f"held-{number}"]

    run(test)


def test_a_partition_added_since_begins_at_0_for_who_is_there_and_for_who_comes_back(
    kafka: KafkaCluster, topic: str
) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as live:
            await live.say("subscribe", channels=["a"])
            subscribed = (await live.until("subscribed"))[-1]
            await asyncio.to_thread(add_partitions, kafka.settings(), topic, 2)
            # Before the gateway knows of it.
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", n) for n in range(5)])
            await _knows(gateway, 2)
            assert [(m["partition"], m["offset"]) for m in await live.records(5)] == [(1, n) for n in range(5)]
            for place in ({"token": subscribed["token"]}, {"positions": subscribed["positions"]}):
                async with plain(gateway) as back:
                    await back.say("resume", channels=["a"], **place)
                    heard = await back.until("resume_ack")
                    assert [(m["partition"], m["offset"]) for m in heard[:-1]] == [(1, n) for n in range(5)]
            # What has come live does not come again.
            await live.say("resume", positions=subscribed["positions"])
            assert (await live.until("resume_ack"))[-1]["messages_replayed"] == 0

    run(test)


def test_a_topic_that_is_served_no_more_is_told_and_the_others_go_on(kafka: KafkaCluster, topic: str) -> None:
    other = f"{topic}-other"
    create_topic(kafka.address, other)
    write(kafka.address, other, [(0, "a", n) for n in range(3)])

    async def test() -> None:
        async with serving(kafka.address, [topic, other], **KEYS) as both:
            client = GatewayClient(both.address, ["a"])
            async with client:
                items = aiter(client)
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 0)])
                client._place.positions = {topic: {0: 0}, other: {0: 3}}
                assert isinstance(await anext(items), Message)
        token = client._place.token
        async with serving(kafka.address, [topic], **KEYS) as one:
            for place in (token, None):
                client = GatewayClient(one.address, ["a"])
                async with client:
                    client._place.token, client._place.positions = place, {topic: {0: 1}, other: {0: 3}}
                    items = aiter(client)
                    assert await anext(items) == Missed(other, 0, 3, None, "not_served")
                    await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 1)])
                    assert isinstance(await anext(items), Message)
                    assert other not in client._place.positions
                await reached(one, 2)

    run(test)
