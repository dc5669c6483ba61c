"""What is committed, and when: never beyond what is unfinished, and nothing whose result is not safe."""

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from strandline.errors import KafkaError, OutputLost
from strandline.replay.plan import Until
from strandline.stack.kafka import KafkaCluster
from tests.ordered.support import create_topic
from tests.replay.support import (
    OK,
    Held,
    Peer,
    Said,
    capture,
    committed,
    connection,
    get,
    plan,
    replay,
    running,
    serving,
    until,
    write,
)
from tests.support import TIMEOUT


def in_topic(address: str, topic: str, partition: int = 0) -> list[str]:
    """The ids of the results in a partition of a topic, as it is now."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    try:
        place = TopicPartition(topic, partition, 0)
        end = consumer.get_watermark_offsets(place, timeout=TIMEOUT)[1]
        consumer.assign([place])
        found: list[str] = []
        deadline = time.monotonic() + TIMEOUT
        while len(found) < end:
            assert time.monotonic() < deadline, f"{len(found)} of {end} results"
            messages = [message for message in consumer.consume(end, 0.2) if message.error() is None]
            found += [json.loads(message.value() or b"")["id"] for message in messages]
        return found
    finally:
        consumer.close()


def test_the_frontier_stays_before_a_request_that_is_not_answered_while_later_ones_finish(
    kafka: KafkaCluster, topic: str
) -> None:
    create_topic(kafka.address, topic, 2)
    for n in range(6):
        write(kafka.address, topic, [(f"c{n}", r) for r in connection(f"c{n}", [Said(10 * n, get(f"/{n}"))])], 0)
    held = Held("/2")

    async def main() -> None:
        async with (
            serving(held) as server,
            running(plan(kafka.address, topic, server, until=Until.NEVER)) as run,
        ):
            await until(lambda: run.is_running and run.engine.counters.answered == 5, "all others are answered")
            await until(lambda: committed(kafka.address, topic) == [2], "what is before it is committed")
            results = f"{topic}-results"
            await until(
                lambda: sum(len(in_topic(kafka.address, results, number)) for number in range(2)) == 5,
                "the others have results",
            )
            await until(lambda: not run.output.unsafe, "the replay knows that they are safe")
            # A commit that comes after these results, and would tell of them.
            other = connection("other", [Said(60, get("/other"))])
            write(kafka.address, topic, [("other", record) for record in other], 1)
            await until(lambda: committed(kafka.address, topic, 2)[1] == 1, "the other partition is committed")
            assert committed(kafka.address, topic) == [2]
            held.let_go()
            await until(lambda: committed(kafka.address, topic) == [6], "all is committed")
            run.stop()

    asyncio.run(main())


def test_what_is_committed_has_its_result_in_the_topic(kafka: KafkaCluster, topic: str) -> None:
    said = [Said(20 * number, get(f"/{number}")) for number in range(100)]
    capture(kafka.address, topic, {"c": connection("c", said)})

    async def main() -> None:
        async with serving() as server, running(plan(kafka.address, topic, server)):
            done = 0
            while done < 100:
                done = max(0, (await asyncio.to_thread(committed, kafka.address, topic))[0])
                if done:
                    ids = await asyncio.to_thread(in_topic, kafka.address, f"{topic}-results")
                    assert {f"0-{offset}.0" for offset in range(done)} <= set(ids)

    asyncio.run(main())


def test_a_result_that_cannot_be_published_holds_the_frontier_and_ends_the_replay(
    kafka: KafkaCluster, topic: str
) -> None:
    said = [Said(0, get("/1")), Said(300, get("/" + "x" * 2000)), Said(600, get("/3"))]
    capture(kafka.address, topic, {"c": connection("c", said)})
    create_topic(kafka.address, f"{topic}-results", 1, max_message_bytes="2500")

    async def answer(peer: Peer, request: bytes) -> None:
        if request.startswith(b"GET /x"):
            # Kafka refuses a batch as a whole: the result before is not to be in one with this.
            await until(lambda: committed(kafka.address, topic) == [1], "the first is committed")
        peer.write(OK)

    async def main() -> None:
        async with serving(answer) as server:
            with pytest.raises(KafkaError, match="results"):
                await replay(plan(kafka.address, topic, server))

    asyncio.run(main())
    assert committed(kafka.address, topic) == [1]


def test_a_file_that_takes_no_more_results_ends_the_replay_with_nothing_committed(
    kafka: KafkaCluster, topic: str
) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"))])})

    async def main() -> None:
        async with serving() as server:
            with pytest.raises(OutputLost):
                full, soon = Path("/dev/full"), timedelta(seconds=1)
                await replay(plan(kafka.address, topic, server, results=full, drain=soon))

    asyncio.run(main())
    assert committed(kafka.address, topic)[0] <= 0
