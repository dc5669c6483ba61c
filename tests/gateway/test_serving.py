"""What a gateway serves: names by rule, slow clients, logs with markers and holes, its pages and its log."""

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import uuid4

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from prometheus_client import CollectorRegistry

from strandline.errors import CannotListen
from strandline.gateway import server
from strandline.gateway.messages import Start
from strandline.gateway.metrics import Metrics
from strandline.gateway.server import Gateway
from strandline.gateway.session import Session
from strandline.gateway.supervisor import Supervisor
from strandline.logs import JsonLines
from strandline.observe import Observed
from strandline.stack import KafkaCluster
from tests.gateway.support import Heard, plain, reached, run, serving, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


def produced(kafka: KafkaCluster, topic: str, *records: tuple[str, bytes | None, dict[str, str]]) -> None:
    producer = Producer({"bootstrap.servers": kafka.address})
    for key, value, headers in records:
        producer.produce(topic, value, key=key, headers=dict(headers))
    assert producer.flush(TIMEOUT) == 0


def test_channel_type_and_priority_are_named_by_rules_and_values_come_as_they_are(
    kafka: KafkaCluster, topic: str
) -> None:
    rules = {"channel": "{key}.{header:kind}", "type": "price:{header:kind}", "priority": "{json:urgency}"}

    async def test() -> None:
        async with serving(kafka.address, {topic: rules}) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["BTC.*"])
            await client.until("subscribed")
            await asyncio.to_thread(
                produced,
                kafka,
                topic,
                ("BTC", b'{"urgency":"HIGH"}', {"kind": "trade"}),
                ("ETH", b"1", {"kind": "trade"}),
                ("BTC", b"\xff\xfe", {"kind": "quote"}),
                ("BTC", None, {"kind": "quote"}),
            )
            heard = await client.records(3)
            told = [(m["channel"], m["type"], m["priority"], m["data"], m.get("encoding")) for m in heard]
            assert told == [
                ("BTC.trade", "price:trade", "HIGH", {"urgency": "HIGH"}, None),
                ("BTC.quote", "price:quote", "NORMAL", "//4=", "base64"),
                ("BTC.quote", "price:quote", "NORMAL", None, None),
            ]

    run(test)


def test_what_is_unsubscribed_comes_no_more_and_a_token_moves_on_all_the_same(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], token_every_s=0.05) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a", "b"])
            await client.until("subscribed")
            await client.say("unsubscribe", channels=["a"])
            await client.until("unsubscribed")
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(20)])
            await reached(gateway, 20)
            # Those that came before the answer may have been made before the records came.
            await client.say("ping")
            await client.until("pong")
            token = (await client.until("token"))[-1]["token"]
            async with plain(gateway) as back:
                # Who hears everything now hears nothing again that was not for it before.
                await back.say("resume", channels=["*"], token=token)
                assert (await back.until("resume_ack"))[-1]["messages_replayed"] == 0
            await asyncio.to_thread(write, kafka.address, topic, [(0, "b", 20)])
            assert (await client.records(1))[0]["offset"] == 20

    run(test)


def test_while_everybody_is_given_a_token_what_comes_does_not_wait(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, given = [0], []

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    async def test() -> None:
        async with serving(kafka.address, [topic], token_every_s=600) as gateway, AsyncExitStack() as clients:
            for _ in range(35):
                await clients.enter_async_context(plain(gateway))
            monkeypatch.setattr(server, "AT_ONCE", 10)
            monkeypatch.setattr(Session, "tell_token", lambda _: given.append(turns[0]))
            gateway.settings = replace(gateway.settings, token_every_s=0.01)
            tasks = [asyncio.create_task(work) for work in (others(), gateway._give_tokens())]
            while len(given) < 35:
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            assert len(set(given[:35])) == 4

    run(test)


def _slow(gateway: Gateway, is_slow: bool) -> None:
    (connection,) = gateway._connections
    (connection.pause_writing if is_slow else connection.resume_writing)()


def test_a_slow_client_gets_the_latest_of_each_key_where_that_is_wanted_and_every_other_offset_in_a_gap(
    kafka: KafkaCluster, topic: str
) -> None:
    # Of a channel with several keys, so that it shows which of them is meant.
    rules = {"channel": "prices"}

    async def test() -> None:
        async with serving(kafka.address, {topic: rules}, conflate=["pri*"]) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["prices"])
            await client.until("subscribed")
            _slow(gateway, True)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "aab"[n % 3], n) for n in range(40)])
            await reached(gateway, 40)
            _slow(gateway, False)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 40)])
            heard: list[Heard] = []
            while not heard or heard[-1].get("offset") != 40:
                heard.append(await client.hear())
            told = [m["offset"] if "offset" in m else (m["reason"], m["from"], m["to"]) for m in heard]
            assert told == [("conflated", 0, 37), 38, 39, 40]

    run(test)


def test_a_slow_client_has_no_token_for_a_log_that_was_cut_back_before_it_is_told_so(
    kafka: KafkaCluster, topic: str
) -> None:
    async def test() -> None:
        async with (
            serving(kafka.address, [topic], conflate=["*"], token_every_s=600) as gateway,
            plain(gateway) as client,
        ):
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(5)])
            await client.records(5)
            _slow(gateway, True)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(5, 10)])
            await reached(gateway, 10)
            (feed,) = gateway.hub.feeds.values()
            feed.horizon = 2
            gateway.tail._cut_back(feed, 3)
            (cut,) = gateway.hub.feeds.values()
            # How far back is given out is as it was.
            assert (cut.end, cut.horizon) == (3, 2)
            _slow(gateway, False)
            told = [(m["type"], m.get("reason")) for m in await client.until("token")]
            assert told == [("gap", "conflated"), ("message", None), ("gap", "truncated"), ("token", None)]

    run(test)


def _in_transactions(address: str, topic: str, ends: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(TIMEOUT)
    for number, end in enumerate(ends):
        producer.begin_transaction()
        producer.produce(topic, json.dumps(f"{end} {number}"), key="a")
        producer.flush(TIMEOUT)
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)(TIMEOUT)


def test_what_it_has_told_of_many_partitions_it_takes_back(kafka: KafkaCluster) -> None:
    topic, partitions = f"wide-{uuid4().hex[:8]}", 60
    create_topic(kafka.address, topic, partitions)

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"message_bytes": 1024}) as gateway:
            async with plain(gateway) as client:
                await client.say("subscribe", channels=["a"])
                (told,) = await client.until("subscribed")
            assert len(told["token"]) > 1024
            await asyncio.to_thread(write, kafka.address, topic, [(n, "a", n) for n in range(partitions)])
            async with plain(gateway) as client:
                positions, token = told["positions"], told["token"]
                await client.say("resume", channels=["a"], positions=positions, token=token, credit=partitions)
                assert sorted(heard["data"] for heard in await client.records(partitions)) == list(range(partitions))

    run(test)


def test_markers_and_what_was_aborted_are_no_gap(kafka: KafkaCluster, topic: str) -> None:
    ends = ["commit", "abort", "abort", "commit"]
    _in_transactions(kafka.address, topic, ends)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 0}})
            heard = await client.until("resume_ack")
            assert [(message["type"], message.get("offset")) for message in heard[:-1]] == [
                ("replay:message", 0),
                ("replay:message", 6),
            ]

    run(test)


def _offsets(address: str, topic: str) -> list[int]:
    """The offsets that partition 0 still has."""
    reader = Consumer({"bootstrap.servers": address, "group.id": "offsets", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    try:
        while (message := reader.poll(TIMEOUT)) is not None:
            error = message.error()
            if error is None:
                found.append(message.offset() or 0)
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        reader.close()
    raise AssertionError(f"the end of {topic} was not reached")


def test_what_compaction_took_is_told_as_that(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(
        kafka.address,
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1",
    )

    write(kafka.address, topic, [(0, "ab"[n % 2], n) for n in range(10)])

    async def test() -> None:
        end = 10
        while [offset for offset in await asyncio.to_thread(_offsets, kafka.address, topic) if offset < 10] != [8, 9]:
            # A segment is closed, and then cleaned, when something comes after it.
            await asyncio.to_thread(write, kafka.address, topic, [(0, f"other {end}", end)])
            end += 1
            await asyncio.sleep(0.1)
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a", "b"], positions={topic: {"0": 3}})
            heard = await client.until("resume_ack")
        assert [message["offset"] for message in heard if "offset" in message] == [8, 9]
        gaps = [message for message in heard if message["type"] == "gap"]
        assert {gap["reason"] for gap in gaps} == {"compacted"}
        assert [offset for gap in gaps for offset in range(gap["from"], gap["to"] + 1)] == [3, 4, 5, 6, 7]

    run(test)


def test_its_pages_say_how_it_is_and_its_log_who_was_sent_what(
    kafka: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        caplog.set_level(logging.INFO, "strandline.gateway")
        registry = CollectorRegistry()
        async with serving(kafka.address, [topic], limits={"cold_every_s": 600}) as gateway:
            registry.register(Metrics(lambda: (gateway.state(), 1)))
            with Observed("127.0.0.1", 0, registry, gateway.not_ready) as pages:
                async with plain(gateway) as client:
                    for _ in range(2):
                        await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id="client-7")
                        await client.until("resume_ack", "error")

                def page(name: str) -> tuple[int, str]:
                    try:
                        with urlopen(f"{pages.address}/{name}", timeout=TIMEOUT) as answer:
                            return answer.status, answer.read().decode()
                    except HTTPError as error:
                        return error.code, error.read().decode()

                _, metrics = await asyncio.to_thread(page, "metrics")
                for line in (
                    "replay_requests_total 2.0",
                    "replay_successes_total 1.0",
                    "replay_failures_total 1.0",
                    "replay_seconds_count 1.0",
                    "replayed_total 5.0",
                    "cold_replays_waiting 0.0",
                ):
                    assert f"strandline_gateway_{line}\n" in metrics
                assert await asyncio.to_thread(page, "healthz") == (200, "ok\n")
                assert await asyncio.to_thread(page, "readyz") == (200, "ok\n")
                # Of a node that leads nothing, so that no reader finds that it is well.
                gateway.tail._troubles[99] = "no broker answers"
                assert await asyncio.to_thread(page, "readyz") == (503, "no broker answers\n")
        (logged,) = [record for record in caplog.records if record.getMessage() == "replay completed"]
        told = json.loads(JsonLines({}).format(logged))
        assert (told["client_id"], told["subject"], told["messages_replayed"]) == ("client-7", "anonymous", 5)

    run(test)


def test_a_port_that_somebody_listens_on_is_refused(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            port = int(gateway.address.rpartition(":")[2])
            second = Gateway(replace(gateway.settings, listen=("127.0.0.1", port)))
            told = f"^cannot listen on 127.0.0.1:{port}: Address already in use; change listen in the file$"
            with pytest.raises(CannotListen, match=told):
                await second.__aenter__()
            # And where several processes are to share it.
            start = Start(0, b"", "", {"bootstrap.servers": kafka.address}, "127.0.0.1", port, "")
            with pytest.raises(CannotListen, match=told):
                await Supervisor(start, gateway.settings.limits, 2).__aenter__()

    run(test)
