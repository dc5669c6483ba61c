"""Who is let in, what a token allows, and how a client that asks for too much is told."""

import asyncio
import base64
from typing import Any
from uuid import uuid4

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from strandline.gateway.client import GatewayClient
from strandline.stack import KafkaCluster
from tests.gateway.support import FRESH_S, JWT, Plain, expire_all_but_fresh, plain, reached, run, serving, token, write
from tests.ordered.support import create_topic


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


@pytest.mark.parametrize(
    "shown",
    ["", "nonsense", token(["a"], key="another secret that is thirty-two long"), token(["a"], valid_s=-60)],
    ids=["none", "nonsense", "forged", "expired"],
)
def test_who_has_no_token_that_is_taken_stays_outside(kafka: KafkaCluster, topic: str, shown: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], **JWT) as gateway:
            with pytest.raises(InvalidStatus) as caught:
                async with plain(gateway, f"?access_token={shown}" if shown else ""):
                    pass
            assert caught.value.response.status_code == 401

    run(test)


def test_a_token_allows_its_channels_only_live_and_replayed(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], **JWT) as gateway:
            await asyncio.to_thread(write, kafka.address, topic, [(0, "mine.a", 1), (0, "other", 2)])
            await reached(gateway, 2)
            async with plain(gateway, f"?access_token={token(['mine.*'])}") as client:
                for kind in ("subscribe", "resume"):
                    for channel in ("other", "*", "min*"):
                        await client.say(kind, channels=[channel], **({} if kind == "subscribe" else {"since": 0}))
                        assert (await client.hear())["code"] == "not_allowed"
                await client.say("resume", channels=["mine.*"], since=0)
                heard = await client.until("resume_ack")
                assert [message["data"] for message in heard if "offset" in message] == [1]

    run(test)


def test_a_resume_token_is_of_use_to_its_own_subject_only(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], token_every_s=0.05, **JWT) as gateway:
            async with plain(gateway, f"?access_token={token(['a'])}") as client:
                await client.say("subscribe", channels=["a"])
                mine = (await client.until("token"))[-1]["token"]
            async with plain(gateway, f"?access_token={token(['a'], subject='you')}") as other:
                await other.say("resume", channels=["a"], token=mine)
                assert (await other.hear())["code"] == "token_not_yours"

    run(test)


def test_a_resume_token_that_was_changed_or_has_expired_is_refused_and_positions_still_work(
    kafka: KafkaCluster, topic: str
) -> None:
    write(kafka.address, topic, [(0, "a", 1)])

    async def test() -> None:
        async with (
            serving(kafka.address, [topic]) as gateway,
            serving(kafka.address, [topic], token_valid_s=0.001) as brief,
            plain(gateway) as client,
            plain(brief) as late,
        ):
            told = []
            for one in (client, late):
                await one.say("subscribe", channels=["a"])
                told.append((await one.until("subscribed"))[-1]["token"])
            body, _, digest = told[0].partition(".")
            other_place = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"[1,", b"[0,"))
            forged = f"{other_place.decode().rstrip('=')}.{digest}"
            for one, shown, code in (
                (client, forged, "token_forged"),
                (client, told[1], "token_forged"),
                (client, f"{body}.{'A' * len(digest)}", "token_forged"),
                (client, body, "token_malformed"),
                (late, told[1], "token_expired"),
            ):
                await one.say("resume", channels=["a"], token=shown)
                assert (await one.until("error"))[-1]["code"] == code
            assert forged.partition(".")[0] != body
            await client.say("resume", channels=["a"], positions={topic: {"0": 0}})
            assert (await client.until("resume_ack"))[-1]["messages_replayed"] == 1

    run(test)


def test_a_connection_ends_with_its_token_unless_a_fresh_one_is_shown(kafka: KafkaCluster, topic: str) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic], **JWT) as gateway:
            short = token(["a", "b"])
            async with (
                plain(gateway, f"?access_token={short}") as ends,
                plain(gateway, f"?access_token={short}") as stays,
            ):
                await stays.say("subscribe", channels=["a", "b"])
                await stays.until("subscribed")
                await stays.say("auth", token=token(["a"], valid_s=FRESH_S))
                assert (await stays.until("unsubscribed"))[-1]["channels"] == ["b"]
                await expire_all_but_fresh(gateway)
                with pytest.raises(ConnectionClosed) as caught:
                    await ends.until("never")
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 4001
                await stays.say("ping")
                assert (await stays.until("pong"))[-1] == {"type": "pong"}

    run(test)


def test_limits_are_told_and_harm_nobody_else(kafka: KafkaCluster, topic: str) -> None:
    limits: dict[str, Any] = {
        "subscriptions": 10,
        "message_bytes": 2048,
        "messages_per_s": 50,
        "connections_per_address": 3,
    }

    async def test() -> None:
        async with serving(kafka.address, [topic], limits=limits) as gateway, plain(gateway) as bystander:
            await bystander.say("subscribe", channels=["a"])
            await bystander.until("subscribed")
            written = 0

            async def is_not_harmed() -> None:
                nonlocal written
                values = list(range(written, written + 20))
                written += len(values)
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", value) for value in values])
                assert [record["data"] for record in await bystander.records(len(values))] == values

            async with plain(gateway) as client:
                await client.say("subscribe", channels=[f"c{n}" for n in range(11)])
                assert (await client.hear())["code"] == "too_many_subscriptions"
                with pytest.raises(ConnectionClosed) as large:
                    await client.connection.send("x" * 10_000)
                    await client.hear()
                assert large.value.rcvd is not None
                assert large.value.rcvd.code == 1009
            await is_not_harmed()
            async with plain(gateway) as flood:
                with pytest.raises(ConnectionClosed) as many:
                    # Past the library, which stumbles over a close that comes between two of its own messages.
                    ping = Frame(Opcode.TEXT, b'{"type":"ping"}').serialize(mask=True)
                    flood.connection.transport.write(ping * 200)
                    await is_not_harmed()
                    await flood.until("never")
                assert many.value.rcvd is not None
                assert many.value.rcvd.code == 4029
            # The places of those before are free when the gateway has seen them go.
            while len(gateway._connections) > 1:
                await asyncio.sleep(0.01)
            async with plain(gateway), plain(gateway):
                with pytest.raises(InvalidStatus) as full:
                    async with plain(gateway):
                        pass
                assert full.value.response.status_code == 503
                assert int(full.value.response.headers["Retry-After"]) > 0
                await is_not_harmed()

    run(test)


def test_replays_from_kafka_have_a_rate_and_what_is_in_memory_is_free(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"cold_every_s": 3600}) as gateway:
            async with plain(gateway) as client:
                await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id="one")
                assert (await client.until("resume_ack"))[-1]["messages_replayed"] == 5
            async with plain(gateway) as client:
                await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id="one")
                told = await client.hear()
                assert told["code"] == "replay_limited"
                assert 0 < told["retry_after"] <= 3600
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 5)])
            await reached(gateway, 6)
            async with plain(gateway) as client:
                await client.say("resume", channels=["a"], positions={topic: {"0": 5}}, client_id="one")
                assert (await client.until("resume_ack"))[-1]["messages_replayed"] == 1

    run(test)


def test_another_client_id_each_time_is_no_way_round_the_rate_of_a_subject_or_an_address(
    kafka: KafkaCluster, topic: str
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])
    auth = {"auth": {**JWT["auth"], "anonymous": True, "anonymous_channels": ["a"]}}
    limits = {"cold_every_s": 600, "cold_clients": 2}

    async def test() -> None:
        async with serving(kafka.address, [topic], limits=limits, **auth) as gateway:

            async def replayed(query: str, client_id: str, come_from: str = "127.0.0.1") -> str:
                async with connect(gateway.address + query, local_addr=(come_from, 0)) as connection:
                    client = Plain(connection)
                    await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id=client_id)
                    told = (await client.until("resume_ack", "error"))[-1]
                    return str(told.get("code") or told["status"])

            mine, yours = (f"?access_token={token(['a'], subject=subject)}" for subject in ("me", "127.0.0.1"))
            for query, come_from in ((mine, "127.0.0.1"), (yours, "127.0.0.1"), ("", "127.0.0.1"), ("", "127.0.0.2")):
                assert [await replayed(query, name, come_from) for name in "aabc"] == [
                    "completed",
                    "replay_limited",
                    "completed",
                    "replay_limited",
                ]
            # A subject is the same wherever it comes from.
            assert await replayed(mine, "d", "127.0.0.3") == "replay_limited"

    run(test)


def test_clients_without_a_client_id_do_not_wait_for_one_another(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"cold_every_s": 600, "cold_clients": 3}) as gateway:
            for status in ("completed", "completed", "completed", "replay_limited"):
                async with plain(gateway) as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 0}})
                    told = (await client.until("resume_ack", "error"))[-1]
                    assert str(told.get("code") or told["status"]) == status

    run(test)


def test_each_client_object_has_an_id_of_its_own() -> None:
    clients = [GatewayClient("ws://h", ["a"]) for _ in range(2)]
    ids = [client._client_id for client in clients]
    assert all(ids)
    assert len(set(ids)) == 2
    assert GatewayClient("ws://h", ["a"], client_id="mine")._client_id == "mine"


def test_without_a_token_only_the_channels_for_that_are_read_beside_tokens(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, key, key) for key in ("open.a", "admin")])
    auth = {"auth": {**JWT["auth"], "anonymous": True, "anonymous_channels": ["open.*"]}}

    async def test() -> None:
        async with serving(kafka.address, [topic], **auth) as gateway, plain(gateway) as client:
            for channel in ("admin", "*"):
                await client.say("resume", channels=[channel], positions={topic: {"0": 0}})
                assert (await client.until("resume_ack", "error"))[-1]["code"] == "not_allowed"
            await client.say("resume", channels=["open.*"], positions={topic: {"0": 0}})
            heard = await client.until("resume_ack")
            assert [message["data"] for message in heard[:-1]] == ["open.a"]
        query = f"?access_token={token(['admin'])}"
        async with serving(kafka.address, [topic], **auth) as gateway, plain(gateway, query) as client:
            await client.say("resume", channels=["admin"], positions={topic: {"0": 0}})
            assert [message["data"] for message in (await client.until("resume_ack"))[:-1]] == ["admin"]

    run(test)


def test_what_is_older_than_the_horizon_is_told(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic], max_history_s=0.001) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 2}})
            heard = await client.until("resume_ack")
            assert (heard[0]["reason"], heard[0]["from"], heard[0]["to"]) == ("horizon", 2, 4)
            assert heard[-1]["messages_replayed"] == 0

    run(test)
