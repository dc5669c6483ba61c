"""Replays from a time and from behind a horizon, and the pages that they come in."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from strandline.gateway import replaying
from strandline.gateway.feed import Feed
from strandline.gateway.history import History
from strandline.gateway.whereabouts import Behind
from strandline.stack import KafkaCluster
from tests.gateway.support import plain, reached, run, serving, write
from tests.ordered.support import create_topic, produce


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


def test_a_replay_from_a_time_begins_with_the_first_record_that_is_as_late(kafka: KafkaCluster, topic: str) -> None:
    produce(kafka.address, topic, [(0, 1_000_000 + 1000 * n, b"%d" % n) for n in range(20)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:
            for since, count in ((1_012_500, 7), (1_013_000, 7), (0, 20), (2_000_000, 0)):
                async with plain(gateway) as client:
                    await client.say("resume", channels=["*"], since=since, client_id=str(since))
                    heard = await client.until("resume_ack")
                    assert [message["data"] for message in heard[:-1]] == list(range(20 - count, 20)), since

    run(test)


def test_the_next_page_of_a_replay_from_a_time_goes_on_in_every_partition_from_where_it_is(
    kafka: KafkaCluster, topic: str
) -> None:
    three = f"{topic}-three"
    create_topic(kafka.address, three, 3)
    produce(kafka.address, three, [(n % 3, 1_000_000 + 1000 * n, b"%d" % n) for n in range(120)])

    async def test() -> None:
        async with serving(kafka.address, [three]) as gateway:
            found: list[int] = []
            asked: dict[str, Any] = {"since": 1_060_000}
            while asked:
                # Each page on a connection of its own.
                async with plain(gateway) as client:
                    await client.say("resume", channels=["*"], credit=15, **asked, client_id=f"page {len(found)}")
                    heard = await client.until("resume_ack")
                    found += [message["data"] for message in heard if "offset" in message]
                    asked = {"token": heard[-1]["next"]} if heard[-1]["status"] == "partial" else {}
            assert sorted(found) == list(range(60, 120))

    run(test)


def test_from_where_a_time_begins_kafka_is_asked_once_in_the_time_of_a_replay_from_there(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])
    asked: list[int] = []
    since = History.since

    async def counted(self: History, feed: Feed, at: int) -> int:
        asked.append(at)
        return await since(self, feed, at)

    monkeypatch.setattr(History, "since", counted)

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"cold_every_s": 600}) as gateway, plain(gateway) as client:
            answers = []
            for place in range(3):
                await client.say("resume", channels=["a"], since=place)
                answers.append((await client.until("resume_ack", "error"))[-1])
            assert [answer.get("code", answer.get("status")) for answer in answers] == [
                "completed",
                "replay_limited",
                "replay_limited",
            ]
            assert asked == [0]

    run(test)


def test_what_is_older_than_the_horizon_is_told_and_all_behind_it_comes_with_the_time_of_its_record(
    kafka: KafkaCluster, topic: str
) -> None:
    now = int(time.time() * 1000)
    times = [now - 7_200_000 + 1000 * n for n in range(12)] + [now - 60_000 + 1000 * n for n in range(8)]
    produce(kafka.address, topic, [(0, at, b"%d" % n) for n, at in enumerate(times)])

    async def test() -> None:
        async with serving(kafka.address, [topic], max_history_s=3600) as gateway:
            asked: list[tuple[dict[str, Any], int | None, int]] = [
                ({"positions": {topic: {"0": 3}}}, 3, 12),
                ({"positions": {topic: {"0": 15}}}, None, 15),
                # Who asks for a time claims no offset before it.
                ({"since": 0}, None, 12),
            ]
            for place, (asking, first, begin) in enumerate(asked):
                async with plain(gateway) as client:
                    await client.say("resume", channels=["*"], client_id=str(place), **asking)
                    *heard, _ = await client.until("resume_ack")
                if first is not None:
                    gap = heard.pop(0)
                    assert (gap["reason"], gap["from"], gap["to"]) == ("horizon", first, begin - 1)
                assert [(m["offset"], m["ts"]) for m in heard] == list(enumerate(times))[begin:]

    run(test)


@pytest.mark.parametrize("kind", ["resume", "reconnect"])
def test_a_page_ends_with_its_time_too(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(50)])
    step = replaying.Replaying._step

    async def slowly(self: replaying.Replaying, feed: Feed, place: Behind) -> None:
        await step(self, feed, place)
        if place.position.offset == 20:
            # Its time is over here, and nowhere else: how long the rest takes is the machine's affair.
            self._page_ends = self._loop.time() - 1

    monkeypatch.setattr(replaying, "AT_ONCE", 10)
    monkeypatch.setattr(replaying.Replaying, "_step", slowly)
    where: dict[str, Any] = {"positions": {topic: {"0": 0}}, "credit": 1000}
    asked = {"channels": ["a"], **where} if kind == "resume" else {"last_offset": {topic: -1}}

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"page_s": 600}) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await client.say(kind, **asked)
            *heard, answer = await client.until("resume_ack", "reconnect_ack")
            assert (answer["status"], answer["messages_replayed"]) == ("partial", 20)
            assert [message["data"] for message in heard] == list(range(20))
            if kind == "reconnect":
                assert answer["missing"] == [{"topic": topic, "partition": 0, "from": 20, "to": 49}]
                return
            # It has credit left, so that the next page comes by itself.
            *heard, answer = await client.until("resume_ack")
            assert (answer["status"], answer["messages_replayed"]) == ("completed", 50)
            assert [message["data"] for message in heard] == list(range(20, 50))

    run(test)


def test_a_replay_goes_on_page_by_page_without_end_as_the_client_asks_for_more(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(350)])

    async def test() -> None:
        async with serving(kafka.address, [topic], recent_bytes=1024) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 0}})
            found: list[int] = []
            for last in (100, 200, 300):
                heard = await client.until("resume_ack")
                found += [message["data"] for message in heard if "offset" in message]
                assert (heard[-1]["status"], heard[-1]["messages_replayed"], len(found)) == ("partial", last, last)
                await client.say("ack", credit=100)
            heard = await client.until("resume_ack")
            found += [message["data"] for message in heard if "offset" in message]
            assert heard[-1]["status"] == "completed"
            assert found == list(range(350))
            # What comes with the last answer is where it is now.
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(350, 353)])
            await reached(gateway, 353)
            async with plain(gateway) as back:
                await back.say("resume", channels=["a"], token=heard[-1]["token"], client_id="back")
                again = await back.until("resume_ack")
                assert [message["data"] for message in again if "offset" in message] == [350, 351, 352]

    run(test)
