"""A replay that somebody else leads: when it begins, where from, and when it ends."""

import asyncio
from threading import Event

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.clock import SystemClock
from strandline.core.pacing import Pace
from strandline.kafka.partition import Partition
from strandline.replay.beginning import From, find_span, first_time, send_group_to, where_group_is
from strandline.replay.limits import Limits
from strandline.stack.kafka import KafkaCluster
from strandline.units import Nanos
from tests.ordered.support import create_topic
from tests.replay.support import (
    BEGIN,
    MS,
    Said,
    capture,
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

clock = SystemClock()


@pytest.mark.parametrize("memory", [256 << 20, 1])
def test_it_sends_nothing_before_it_has_the_reference_and_stays_until_all_are_done(
    kafka: KafkaCluster, topic: str, memory: int
) -> None:
    said = {f"c{n}": connection(f"c{n}", [Said(n, get(f"/{n}"))]) for n in range(20)}
    capture(kafka.address, topic, said, partitions=2)

    async def main() -> None:
        limits = Limits(memory=memory)
        async with serving() as server, running(plan(kafka.address, topic, server, is_led=True, limits=limits)) as run:
            await until(lambda: run.is_ready, "it has what it sends first")
            assert not run.has_begun
            assert not server.arrivals
            run.begin(Pace(Nanos(BEGIN), clock.monotonic()))
            await until(lambda: run.is_done, "all is sent")
            assert len(server.arrivals) == 20
            await asyncio.sleep(0.5)  # several rounds of its loop
            assert len(run.gate.partitions) == 2, "it is still a member"
            run.finish()

    asyncio.run(main())


def test_it_ends_where_the_log_ended_when_the_run_began(kafka: KafkaCluster, topic: str) -> None:
    capture(kafka.address, topic, {"a": connection("a", [Said(0, get("/a"))], close_at=1)})
    ends = {Partition(topic, 0): 2}
    write(kafka.address, topic, [("b", record) for record in connection("b", [Said(2, get("/b"))])])

    async def main() -> None:
        async with serving() as server, running(plan(kafka.address, topic, server, ends=ends)):
            pass
        assert server.paths == ["/a"]

    asyncio.run(main())


def test_the_reference_is_the_earliest_of_the_first_records_that_tell_a_time(kafka: KafkaCluster, topic: str) -> None:
    create_topic(kafka.address, topic, 4)
    settings: dict[str, object] = {"bootstrap.servers": kafka.address, "group.id": topic}
    for partition, times in {0: (900, 100), 1: (300, 200), 3: (400,)}.items():
        records = [("x", b"\xff\xff")] if partition == 1 else []
        for at in times:
            records += [(f"c{at}", record) for record in connection(f"c{at}", [Said(at, get("/"))])]
        write(kafka.address, topic, records, partition)

    async def main() -> None:
        span = await find_span(settings, topic, From.COMMITTED)
        assert span.begin is None
        marks = await where_group_is(settings, span)
        assert marks == {Partition(topic, number): 0 for number in range(4)}
        assert await first_time(settings, marks, Event()) == BEGIN + 300 * MS

    asyncio.run(main())


def test_what_kafka_has_deleted_before_the_group_read_it_is_told_and_the_rest_is_found(
    kafka: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = [Said(100 * number, get(f"/{number}")) for number in range(4)]
    capture(kafka.address, topic, {"c": connection("c", said)})
    chosen = plan(kafka.address, topic, "http://127.0.0.1:1")
    place = Partition(topic, 0)

    async def main() -> None:
        await send_group_to(chosen.kafka, {place: 1})
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (done,) = admin.delete_records([TopicPartition(topic, 0, 3)]).values()
        await asyncio.to_thread(done.result, TIMEOUT)
        marks = await where_group_is(chosen.kafka, await find_span(chosen.kafka, topic, From.COMMITTED))
        assert marks == {place: 3}
        for mark in (3, 1):
            found = await asyncio.wait_for(first_time(chosen.kafka, {place: mark}, Event()), TIMEOUT)
            assert found == BEGIN + 300 * MS
        told = [record.getMessage() for record in caplog.records if record.name == "strandline.replay.beginning"]
        assert told == [f"{place}: Kafka has deleted 1 to 2 before the group had read them"]
        caplog.clear()
        async with serving() as server:
            await replay(plan(kafka.address, topic, server))
            assert server.paths == ["/3"]
        assert "Kafka has deleted 1 to 2" in caplog.text
        caplog.clear()
        async with serving() as server:
            await replay(plan(kafka.address, topic, server))
        assert "deleted" not in caplog.text

    asyncio.run(main())


def test_while_there_is_no_record_the_first_that_comes_is_waited_for(kafka: KafkaCluster, topic: str) -> None:
    create_topic(kafka.address, topic, 2)
    settings: dict[str, object] = {"bootstrap.servers": kafka.address, "group.id": topic}
    marks = {Partition(topic, number): 0 for number in range(2)}

    async def main() -> None:
        stopped = Event()
        looking = asyncio.ensure_future(first_time(settings, marks, stopped))
        await asyncio.sleep(0.5)
        assert not looking.done()
        write(kafka.address, topic, [("a", record) for record in connection("a", [Said(5, get("/"))])], 1)
        assert await asyncio.wait_for(looking, TIMEOUT) == BEGIN + 5 * MS
        waiting = asyncio.ensure_future(first_time(settings, {Partition(topic, 0): 0}, stopped))
        stopped.set()
        assert await asyncio.wait_for(waiting, TIMEOUT) is None

    asyncio.run(main())
