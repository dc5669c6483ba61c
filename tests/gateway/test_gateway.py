"""The gateway on a real broker: what is live, what is replayed, and nothing lost or repeated where they meet."""

import asyncio
from base64 import b64encode
from collections.abc import Collection
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from strandline.errors import Moved
from strandline.gateway import tail
from strandline.gateway.client import GatewayClient, Message, Missed
from strandline.kafka.cluster import Cluster
from strandline.kafka.partition import Partition
from strandline.stack import KafkaCluster
from tests.gateway.support import create_when_gone, delete, plain, reached, run, serving, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


def test_a_subscriber_gets_what_is_written_on_its_channels_in_order_with_its_own_numbers(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as one, plain(gateway) as two:
            await one.say("subscribe", channels=["BTC.trade", "ETH.*"])
            await two.say("subscribe", channels=["*"])
            await one.until("subscribed")
            await two.until("subscribed")
            written = [(n % 2, ("BTC.trade", "ETH.quote", "XRP.trade")[n % 3], {"n": n}) for n in range(60)]
            await asyncio.to_thread(write, kafka.address, topic, written)
            heard, all_heard = await one.records(40), await two.records(60)
            assert [message["seq"] for message in heard] == list(range(1, 41))
            assert {message["channel"] for message in heard} == {"BTC.trade", "ETH.quote"}
            for partition in range(2):
                of_it = [message["data"]["n"] for message in all_heard if message["partition"] == partition]
                assert of_it == [n for p, _, n in ((p, k, v["n"]) for p, k, v in written) if p == partition]

    run(test)


def test_a_client_that_was_away_gets_all_it_missed_and_then_what_is_live(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            async with plain(gateway) as client:
                await client.say("subscribe", channels=["a"])
                positions = (await client.until("subscribed"))[-1]["positions"]
            await asyncio.to_thread(write, kafka.address, topic, [(n % 2, "a", n) for n in range(50)])
            await reached(gateway, 50)
            async with plain(gateway) as client:
                await client.say("resume", channels=["a"], positions=positions)
                heard = await client.until("resume_ack")
                assert heard[-1]["status"] == "completed"
                assert sorted(message["data"] for message in heard[:-1]) == list(range(50))
                assert {message["type"] for message in heard[:-1]} == {"replay:message"}
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 50)])
                (live,) = await client.records(1)
                assert (live["data"], live["type"], live["seq"]) == (50, "message", 51)

    run(test)


def test_nothing_is_lost_or_repeated_where_a_replay_meets_what_is_live(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    count = 4000

    async def test() -> None:
        # So little is kept that most of it is read from Kafka.
        async with serving(kafka.address, [topic], recent_bytes=20_000, limits={"cold_every_s": 0.001}) as gateway:
            clients = [GatewayClient(gateway.address, ["a"]) for _ in range(5)]
            heard: list[list[int]] = [[] for _ in clients]

            async def listen(place: int) -> None:
                cut_every = 150 + 70 * place
                async with clients[place] as client:
                    async for item in client:
                        assert isinstance(item, Message)
                        heard[place].append(item.data)
                        if len(heard[place]) == count:
                            return
                        if len(heard[place]) % cut_every == 0 and client._connection is not None:
                            client._connection.transport.abort()

            listeners = [asyncio.create_task(listen(place)) for place in range(5)]
            while sum(len(session.wanted) for session in gateway.hub.sessions) < 5:
                await asyncio.sleep(0.01)
            for low in range(0, count, 100):
                written = [(n % 2, "a", n) for n in range(low, low + 100)]
                await asyncio.to_thread(write, kafka.address, topic, written)
            await asyncio.gather(*listeners)
            for place, numbers in enumerate(heard):
                assert sorted(numbers) == list(range(count)), place
                for partition in range(2):
                    of_it = [n for n in numbers if n % 2 == partition]
                    assert of_it == sorted(of_it)
                assert clients[place].connects > 5

    run(test)


def test_what_retention_has_deleted_is_told_exactly(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(30)])
    delete(kafka.address, topic, 20)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 5}})
            heard = await client.until("resume_ack")
            gap = {"type": "gap", "topic": topic, "partition": 0, "from": 5, "to": 19, "reason": "deleted"}
            assert heard[0] == gap
            assert [message["data"] for message in heard[1:-1]] == list(range(20, 30))

    run(test)


def test_the_client_of_old_reconnects_before_it_subscribes(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(150)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("reconnect", client_id="client-12345", last_offset={topic: 9})
            # It waits for an answer before it subscribes, and nothing is complete yet.
            kept = (await client.until("reconnect_ack"))[-1]
            assert (kept["status"], kept["messages_replayed"]) == ("partial", 0)
            async with plain(gateway) as other:
                await other.say("resume", channels=["a"], token=kept["next"], credit=1000)
                heard = await other.until("resume_ack")
                assert [message["data"] for message in heard if "offset" in message] == list(range(10, 150))
            await client.say("subscribe", channels=["a"])
            heard = await client.until("reconnect_ack")
            ack = heard[-1]
            assert (ack["status"], ack["messages_replayed"]) == ("partial", 100)
            assert ack["missing"] == [{"topic": topic, "partition": 0, "from": 110, "to": 149}]
            assert [message["data"] for message in heard if "offset" in message] == list(range(10, 110))
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 150)])
            (live,) = await client.records(1)
            assert live["data"] == 150
            await client.say("resume", channels=["a"], token=ack["next"])
            rest = await client.until("resume_ack")
            assert [message["data"] for message in rest if "offset" in message] == list(range(110, 150))
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 151)])
            assert (await client.records(1))[0]["data"] == 151

    run(test)


def test_a_reconnect_names_the_last_offset_received_of_each_partition(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    write(kafka.address, topic, [(n % 2, "a", n) for n in range(20)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            await client.say("reconnect", client_id="client-12345", last_offset={topic: {"0": 7, "1": "8"}})
            heard = await client.until("reconnect_ack")
            assert [message["data"] for message in heard if "offset" in message] == [16, 18, 19]
            assert (heard[-1]["status"], heard[-1]["messages_replayed"]) == ("completed", 3)

    run(test)


def test_a_topic_made_anew_is_told_and_read_from_its_beginning_also_where_a_broker_is_away_in_the_middle_of_it(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(3)])
    failed: list[Cluster] = []

    class Away(Cluster):
        """Those that are made from now on, of which the first does not answer."""

        async def partitions(self, topics: Collection[str]) -> list[Partition]:
            if not failed:
                failed.append(self)
                raise Moved(topic, "it has no leader")
            return await super().partitions(topics)

    async def test() -> None:
        async with serving(kafka.address, [topic], token_every_s=0.05) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            token = (await client.until("token"))[-1]["token"]
            monkeypatch.setattr(tail, "Cluster", Away)
            admin = AdminClient({"bootstrap.servers": kafka.address})
            admin.delete_topics([topic])[topic].result(TIMEOUT)
            await asyncio.to_thread(create_when_gone, kafka.address, topic)
            gap = (await client.until("gap"))[-1]
            assert (gap["reason"], gap["from"], gap["to"]) == ("recreated", 3, None)
            assert failed
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", "new")])
            assert (await client.records(1))[0]["offset"] == 0
            async with plain(gateway) as late:
                await late.say("resume", channels=["a"], token=token)
                heard = [message for message in await late.until("resume_ack") if message["type"] != "token"]
                assert heard[0]["reason"] == "recreated"
                assert heard[1]["data"] == "new"

    run(test)


def test_what_is_not_understood_has_a_code_and_harms_nobody(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    wrong = {
        "{": "bad_json",
        '{"type":"fly"}': "unknown_type",
        '{"type":"subscribe","data":{"channels":"a"}}': "bad_message",
        '{"type":"subscribe","data":{"channels":["a"]}}': None,
        f'{{"type":"resume","data":{{"positions":{{"{topic}":{{"0":-5}}}}}}}}': "bad_message",
        f'{{"type":"resume","data":{{"positions":{{"{topic}":{{"0":99999999999999999999}}}}}}}}': "bad_message",
        f'{{"type":"resume","data":{{"positions":{{"{topic}":{{"9":1}}}}}}}}': "unknown_partition",
        '{"type":"resume","data":{"positions":{"other":{"0":1}}}}': "unknown_topic",
        '{"type":"resume","data":{"token":"abc"}}': "token_malformed",
        '{"type":"resume","data":{"token":"YWJj.YWJj"}}': "token_malformed",
        f'{{"type":"reconnect","data":{{"last_offset":{{"{topic}":3}}}}}}': "needs_partitions",
    }

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            for text, code in wrong.items():
                await client.connection.send(text)
                heard = await client.hear()
                assert heard.get("code") == code, (text, heard)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 1)])
            assert (await client.records(1))[0]["data"] == 1

    run(test)


def test_a_place_beyond_the_end_is_told(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", 0)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 7}})
            heard = await client.until("resume_ack")
            assert (heard[0]["reason"], heard[0]["from"], heard[0]["to"]) == ("beyond_end", 1, 6)

    run(test)


def test_the_client_tells_its_user_what_was_missed(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", n) for n in range(10)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            client = GatewayClient(gateway.address, ["a"])
            async with client:
                client._place.positions = {topic: {0: 2}}
                delete(kafka.address, topic, 6)
                found = []
                async for item in client:
                    found.append(item)
                    if len(found) == 5:
                        break
            assert found[0] == Missed(topic, 0, 2, 5, "deleted")
            assert [item.data for item in found[1:] if isinstance(item, Message)] == [6, 7, 8, 9]

    run(test)


def test_the_client_takes_what_comes_at_offsets_that_it_had_claimed_too_early(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)
    write(kafka.address, topic, [(0, "a", 0)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, GatewayClient(gateway.address, ["a"]) as client:
            client._place.positions = {topic: {0: 7}}
            found: list[Message | Missed] = []
            async for item in client:
                found.append(item)
                if isinstance(item, Missed):
                    await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in (1, 2)])
                if len(found) == 3:
                    break
            assert found[0] == Missed(topic, 0, 1, 6, "beyond_end")
            assert [item.data for item in found[1:] if isinstance(item, Message)] == [1, 2]
            assert client.repeats == 0

    run(test)


POISON = (b'{"a":"\xff"}', b'{"a":"ok","\xe2\x82":1}', b'{"a":1e999999999999999999999}', b"[" * 100_000, b"")


def test_a_record_whose_value_cannot_be_decoded_stops_nobody_now_or_when_it_is_read_again(kafka: KafkaCluster) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic)

    def write_all() -> None:
        producer = Producer({"bootstrap.servers": kafka.address})
        for value in (b'{"a":"ok"}', *POISON, b'{"a":"ok"}'):
            producer.produce(topic, value, partition=0)
        assert producer.flush(TIMEOUT) == 0

    async def test() -> None:
        # So little is kept that what was missed is read from Kafka again.
        rules = {topic: {"channel": "{json:a}"}}
        async with serving(kafka.address, rules, recent_bytes=1024) as gateway:
            async with plain(gateway) as client:
                await client.say("subscribe", channels=["ok", "*"])
                assert (await client.hear())["type"] == "subscribed"
                await asyncio.to_thread(write_all)
                live = await client.records(len(POISON) + 2)
            async with plain(gateway) as client:
                await client.say("resume", channels=["ok"], positions={topic: {"0": 0}})
                missed = await client.until("resume_ack")
        assert [message["offset"] for message in live] == list(range(len(POISON) + 2))
        assert [message["channel"] for message in live] == ["ok", *[""] * len(POISON), "ok"]
        assert live[1] == {**live[1], "encoding": "base64", "data": b64encode(POISON[0]).decode()}
        assert [message["offset"] for message in missed[:-1]] == [0, len(POISON) + 1]

    run(test)
