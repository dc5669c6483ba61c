"""Replays: by class where they have to wait, side by side with others, and with a process that is behind the client."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from strandline.errors import BrokerUnreachable
from strandline.gateway import history, replaying
from strandline.gateway.feed import RECORD_BYTES, Feed, Record
from strandline.gateway.history import Chunk, History
from strandline.gateway.whereabouts import Behind
from strandline.kafka.connection import Connection
from strandline.stack import KafkaCluster
from tests.gateway.support import JWT, Heard, delete, plain, reached, run, serving, token, write
from tests.ordered.support import create_topic
from tests.support import TIMEOUT


@pytest.fixture
def topic(kafka: KafkaCluster) -> str:
    name = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, name)
    return name


def test_a_client_that_was_further_with_a_faster_process_waits_for_this_one_and_misses_nothing(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic]) as slow, serving(kafka.address, [topic]) as fast:
            feed = slow.hub.topics()[topic][0]
            monkeypatch.setattr(replaying, "AHEAD_S", TIMEOUT)
            # What comes is not taken, and asked for again.
            monkeypatch.setattr(slow.hub, "came", lambda *_: None)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(10)])
            await reached(fast, 10)
            with monkeypatch.context() as brief:
                brief.setattr(replaying, "AHEAD_S", 0.05)
                async with plain(slow) as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 7}})
                    told = (await client.until("error"))[-1]
                    assert (told["code"], told["retry_after"]) == ("unavailable", slow.limits.page_s)
            async with plain(slow) as client:
                await client.say("resume", channels=["a"], positions={topic: {"0": 7}})
                while not slow.hub.ahead:
                    await asyncio.sleep(0.01)
                assert feed.end == 0
                monkeypatch.undo()
                heard = await client.until("resume_ack")
                assert [message["data"] for message in heard if "offset" in message] == [7, 8, 9]
                assert not slow.hub.ahead
                await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 10)])
                assert (await client.records(1))[0]["data"] == 10

    run(test)


def test_what_was_deleted_beyond_what_a_gateway_has_read_is_told_once(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            monkeypatch.setattr(gateway.hub, "came", lambda *_: None)
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(5, 10)])
            await asyncio.to_thread(delete, kafka.address, topic, 8)
            await client.say("resume", channels=["a"], positions={topic: {"0": 2}})
            heard = await client.until("resume_ack")
            monkeypatch.undo()
            heard += await client.until("message")
            heard += await client.until("message")
            told = [(m["from"], m["to"]) if m["type"] == "gap" else m["offset"] for m in heard if "topic" in m]
            assert told == [(2, 4), (5, 7), 8, 9]

    run(test)


def test_the_page_of_a_reconnect_brings_nothing_again_where_the_client_was_further_with_another_process(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    write(kafka.address, topic, [(0, "a", n) for n in range(150)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            monkeypatch.setattr(gateway.hub, "came", lambda *_: None)
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", n) for n in range(10)])
            await client.say("subscribe", channels=["a"])
            await client.say("reconnect", last_offset={topic: {"0": -1, "1": 6}})
            told = (await client.until("reconnect_ack"))[-1]
            assert told["missing"] == [{"topic": topic, "partition": 0, "from": 100, "to": 149}]
            monkeypatch.undo()
            assert [(m["partition"], m["offset"]) for m in await client.records(3)] == [(1, n) for n in (7, 8, 9)]
            await asyncio.to_thread(write, kafka.address, topic, [(n, "a", 10) for n in range(2)])
            assert {(m["partition"], m["offset"]) for m in await client.records(2)} == {(0, 150), (1, 10)}

    run(test)


def test_a_client_of_old_whose_replay_is_refused_hears_what_comes_and_is_told_what_it_missed(
    kafka: KafkaCluster, topic: str
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"cold_every_s": 600}) as gateway:
            for is_first in (True, False):
                async with plain(gateway) as client:
                    await client.say("reconnect", last_offset={topic: 1}, client_id="one")
                    await client.until("reconnect_ack")
                    await client.say("subscribe", channels=["a"])
                    told = (await client.until("reconnect_ack", "reconnect_error"))[-1]
                    if is_first:
                        assert told["status"] == "completed"
                        continue
                    assert told["code"] == "replay_limited"
                    assert told["missing"] == [{"topic": topic, "partition": 0, "from": 2, "to": 4}]
                    await asyncio.to_thread(write, kafka.address, topic, [(0, "a", 5)])
                    assert [m["offset"] for m in await client.records(1)] == [5]
                    # What is named by `next` is another replay from Kafka.
                    await client.say("resume", token=told["next"], client_id="one")
                    assert (await client.until("error"))[-1]["code"] == "replay_limited"
                    async with plain(gateway) as other:
                        await other.say("resume", channels=["a"], token=told["next"], client_id="two")
                        heard = await other.until("resume_ack")
                        assert [m["offset"] for m in heard if "offset" in m] == [2, 3, 4, 5]

    run(test)


def test_a_client_that_reads_slower_than_a_replay_writes_is_not_closed_for_what_comes_live_beside_it(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until the test has seen what it waits for, the client takes nothing, however long that is.
    monkeypatch.setattr(replaying, "DRAIN_S", TIMEOUT)
    topic = f"gateway-{uuid4().hex[:8]}"
    create_topic(kafka.address, topic, 2)
    # More than the kernel takes for a client that reads nothing.
    count = 4 * int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2]) // 10_000
    write(kafka.address, topic, [(0, "a", "x" * 10_000) for _ in range(count)])

    async def test() -> None:
        limits = {"queue_bytes": 65_536, "page_s": 600}
        async with serving(kafka.address, [topic], limits=limits) as gateway, plain(gateway) as client:
            reading = client.connection.transport
            reading.pause_reading()
            await client.say("resume", channels=["a"], positions={topic: {"0": 0, "1": 0}}, credit=1_000_000)
            await _until(lambda: bool(gateway._connections) and next(iter(gateway._connections)).is_slow)
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", n) for n in range(50)])
            await _until(lambda: sum(feed.end for feed in gateway.hub.feeds.values()) == count + 50)
            reading.resume_reading()
            heard = await client.until("resume_ack")
            assert heard[-1]["status"] == "completed"
            for partition, last in ((0, count), (1, 50)):
                assert [m["offset"] for m in heard[:-1] if m.get("partition") == partition] == list(range(last))
            await asyncio.to_thread(write, kafka.address, topic, [(1, "a", 50)])
            assert [m["type"] for m in await client.records(1)] == ["message"]

    run(test)


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.01)


def test_who_leaves_while_kafka_is_asked_for_it_breaks_no_connection_that_others_ask_over(
    kafka: KafkaCluster, topic: str
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])

    async def test() -> None:
        async with serving(kafka.address, [topic], limits={"cold_every_s": 0.001}) as gateway:
            async with plain(gateway) as client:
                await client.say("resume", channels=["a"], positions={topic: {"0": 9}})
                await client.until("resume_ack")
            connections = dict(gateway._history._cluster._asking)
            assert connections
            for _ in range(20):
                async with plain(gateway) as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 9}})
                    while not gateway._history._ends._now:
                        await asyncio.sleep(0)
                    client.connection.transport.abort()
                while gateway.hub.sessions or gateway._history._ends._now:
                    await asyncio.sleep(0)
            assert gateway._history._cluster._asking == connections
            assert all(connection.is_usable for connection in connections.values())

    run(test)


def test_a_channel_that_is_added_by_a_resume_comes_from_there_on_also_where_others_were_live(
    kafka: KafkaCluster, topic: str
) -> None:
    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await asyncio.to_thread(write, kafka.address, topic, [(0, "ab"[n % 2], n) for n in range(40)])
            await client.records(20)
            await reached(gateway, 40)
            await client.say("resume", channels=["b"], positions={topic: {"0": 0}}, credit=1000)
            heard = await client.until("resume_ack")
            assert [m["data"] for m in heard if m.get("channel") == "b"] == list(range(1, 40, 2))
            # What was not heard for a while comes too.
            await client.say("unsubscribe", channels=["a"])
            await client.until("unsubscribed")
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(40, 50)])
            await reached(gateway, 50)
            await client.say("subscribe", channels=["a"])
            await client.until("subscribed")
            await client.say("resume", positions={topic: {"0": 40}}, credit=1000)
            assert [m["data"] for m in await client.until("resume_ack") if "offset" in m] == list(range(40, 50))
            # And what was heard of all channels does not come again.
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(50, 60)])
            await client.records(10)
            await client.say("resume", channels=["a"], positions={topic: {"0": 45}})
            assert (await client.until("resume_ack"))[-1]["messages_replayed"] == 0

    run(test)


def test_a_replay_of_which_nothing_is_wanted_lets_others_go_on_meanwhile(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [0]
    steps: list[int] = []
    step = replaying.Replaying._step

    async def noted(self: replaying.Replaying, feed: Feed, place: Behind) -> None:
        steps.append(turns[0])
        await step(self, feed, place)

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(replaying.Replaying, "_step", noted)
    monkeypatch.setattr(replaying, "AT_ONCE", 10)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await asyncio.to_thread(write, kafka.address, topic, [(0, "a", n) for n in range(50)])
            await reached(gateway, 50)
            task = asyncio.create_task(others())
            await client.say("resume", channels=["nothing"], positions={topic: {"0": 0}})
            assert (await client.until("resume_ack"))[-1]["messages_replayed"] == 0
            task.cancel()
            assert len(steps) == 5
            assert len(set(steps)) == 5

    run(test)


def test_what_is_kept_of_older_records_is_counted_as_it_lies_in_memory(kafka: KafkaCluster, topic: str) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(200)])

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, credit=1000)
            await client.until("resume_ack")
            kept = gateway._history._kept.values()
            frames = [item.frame for chunk in kept for item in chunk.items if isinstance(item, Record)]
            assert len(frames) == 200
            assert gateway._history._bytes >= sum(map(len, frames)) + 200 * RECORD_BYTES

    run(test)


def test_what_is_kept_of_older_records_has_a_bound_in_number_too(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_CHUNKS", 3)
    write(kafka.address, topic, [(0, "a", n) for n in range(20)])
    delete(kafka.address, topic, 15)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway, plain(gateway) as client:
            # Each from an earlier place, of which there is nothing more but a gap.
            for place in reversed(range(10)):
                resume = {"channels": [f"{place}"], "positions": {topic: {"0": place}}}
                await client.say("resume", **resume, client_id=str(place))
                heard = await client.until("resume_ack")
                assert (heard[0]["from"], heard[0]["to"]) == (place, 14)
            assert len(gateway._history._kept) == 3
            assert gateway._history._bytes == sum(chunk.nbytes for chunk in gateway._history._kept.values())

    run(test)


def test_where_replays_wait_the_better_class_is_served_first_and_the_worst_is_told_to_come_again(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])
    reads = asyncio.Queue[asyncio.Event]()
    read = History.read

    async def held(self: History, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        may_go_on = asyncio.Event()
        reads.put_nowait(may_go_on)
        await may_go_on.wait()
        return await read(self, feed, offset, most_bytes)

    monkeypatch.setattr(History, "read", held)
    config: dict[str, Any] = {
        "auth": {"jwt": {**JWT["auth"]["jwt"], "class_claim": "plan", "classes": ["gold", "silver"]}},
        "limits": {"cold_at_once": 1, "cold_waiting": 2, "cold_wait_s": 600},
    }

    async def test() -> None:
        served: list[str] = []
        async with serving(kafka.address, [topic], **config) as gateway:

            async def replay(subject: str, plan: str | None) -> None:
                async with plain(gateway, f"?access_token={token(['a'], subject=subject, plan=plan)}") as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 0}})
                    answer = (await client.until("resume_ack", "error"))[-1]
                    served.append(subject if answer["type"] == "resume_ack" else f"{subject} {answer['code']}")
                    if answer["type"] == "error":
                        assert answer["retry_after"] > 0

            async def waiting(count: int) -> None:
                while len(gateway.commons._asking) < count:
                    await asyncio.sleep(0.01)

            tasks = [asyncio.create_task(replay("first", None))]
            first = await reads.get()
            for place, (subject, plan) in enumerate((("none", None), ("silver", "silver")), 1):
                tasks.append(asyncio.create_task(replay(subject, plan)))
                await waiting(place)
            tasks.append(asyncio.create_task(replay("gold", "gold")))
            while not served:
                await asyncio.sleep(0.01)
            assert served == ["none busy"]
            first.set()
            for _ in range(2):
                (await reads.get()).set()
            await asyncio.gather(*tasks)
            assert served == ["none busy", "first", "gold", "silver"]

    run(test)


def test_what_many_want_at_once_is_read_from_kafka_once(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(kafka.address, topic, [(0, "a", n) for n in range(50)])
    reads: list[int] = []
    fetch = History._fetch

    async def counted(self: History, feed: Feed, offset: int, most_bytes: int) -> Chunk:
        reads.append(offset)
        return await fetch(self, feed, offset, most_bytes)

    monkeypatch.setattr(History, "_fetch", counted)

    async def test() -> None:
        async with serving(kafka.address, [topic]) as gateway:

            async def replayed(name: str) -> list[int]:
                async with plain(gateway) as client:
                    await client.say("resume", channels=["a"], positions={topic: {"0": 0}}, client_id=name)
                    return [message["data"] for message in await client.until("resume_ack") if "offset" in message]

            assert await asyncio.gather(*map(replayed, "abcdefgh")) == [list(range(50))] * 8
            assert reads == [0]

    run(test)


def test_every_reconnect_that_fails_is_told_so_with_its_code_by_the_type_that_the_client_of_old_knows(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = f"{topic}-two"
    create_topic(kafka.address, two, 2)
    write(kafka.address, topic, [(0, "a", n) for n in range(5)])
    wrong: dict[str, list[Any]] = {
        "unknown_topic": [{"another": 1}],
        "unknown_partition": [{topic: {"7": 1}}],
        "needs_partitions": [{two: 1}],
        "bad_message": [{topic: -2}, {topic: "x"}, {topic: {"x": 1}}, {topic: {"0": "9223372036854775808"}}, 5],
    }

    async def unreachable(host: str, port: int) -> Connection:
        raise BrokerUnreachable(f"{host}:{port}", "it is away")

    async def test() -> None:
        limits = {"cold_every_s": 600, "cold_at_once": 1, "cold_wait_s": 0.05}
        async with serving(kafka.address, [topic, two], limits=limits) as gateway:

            async def told(last_offset: Any, client_id: str = "a") -> Heard:
                async with plain(gateway) as client:
                    await client.say("subscribe", channels=["a"])
                    await client.say("reconnect", last_offset=last_offset, client_id=client_id)
                    return (await client.until("reconnect_ack", "reconnect_error", "error"))[-1]

            for code, offsets in wrong.items():
                for offset in offsets:
                    answer = await told(offset)
                    assert (answer["type"], answer["code"]) == ("reconnect_error", code), offset
                    assert "retry_after" not in answer
            assert (await told({topic: -1}))["messages_replayed"] == 5
            cluster = gateway._history._cluster
            gateway._history._kept.clear()
            cluster.close()
            monkeypatch.setattr(cluster, "_open", unreachable)
            cluster.patience = timedelta(0)
            held = await gateway.commons.begin_replay("somebody", "else", 0, is_paid=False)
            for code, client_id in (("replay_limited", "a"), ("busy", "b"), ("unavailable", "c")):
                if code == "unavailable":
                    gateway.commons.end_replay(held)
                answer = await told({topic: -1}, client_id)
                assert (answer["type"], answer["code"]) == ("reconnect_error", code)
                assert answer["retry_after"] > 0
                # Whom the gateway reads from is not for its clients.
                assert kafka.address.rpartition(":")[2] not in answer["message"]

    run(test)
