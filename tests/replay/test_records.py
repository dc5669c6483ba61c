"""Records that are of no use, captures that are scattered, and what is half in the log at its end."""

import asyncio
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from strandline.cli.told import progress, summary
from strandline.errors import ScatteredCapture
from strandline.replay.beginning import From
from strandline.replay.limits import Limits
from strandline.replay.plan import Until
from strandline.replay.timeline import AS_FAST_AS_POSSIBLE
from strandline.stack.kafka import KafkaCluster
from strandline.units import Nanos
from strandline.wire.traffic import Recording
from tests.ordered.support import create_topic
from tests.replay.support import (
    BEGIN,
    MS,
    Said,
    capture,
    committed,
    connection,
    due,
    get,
    plan,
    post,
    replay,
    results,
    running,
    serving,
    until,
    write,
)
from tests.support import TIMEOUT, lines_of, run_strandline, run_warm


def test_records_that_cannot_be_read_go_to_the_dead_letters_and_the_frontier_moves_on(
    kafka: KafkaCluster, topic: str
) -> None:
    [first, second] = connection("c", [Said(0, get("/1")), Said(10, get("/2"))])
    create_topic(kafka.address, topic, 2)
    bad = [b"\xff\xfe garbage", b"\x0a\x05ab", b"", b"\x28\x01", b"\xff" * 1_040_000]
    records = [("c", first), *((f"bad-{n}", value) for n, value in enumerate(bad)), ("c", second)]
    write(kafka.address, topic, records, partition=1)

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server))
            assert server.paths == ["/1", "/2"]
            assert run.buried == len(bad)
            assert "5 records that cannot be read" in summary(run)

    asyncio.run(main())
    assert committed(kafka.address, topic, 2)[1] == 7
    found = letters(kafka.address, f"{topic}-dead-letters", len(bad))
    assert [(value or b"", headers["partition"], headers["offset"]) for value, headers in found] == [
        (value[:900_000], b"1", str(n + 1).encode()) for n, value in enumerate(bad)
    ]
    assert all(headers["topic"] == topic.encode() and headers["reason"] for _, headers in found)


@pytest.mark.parametrize(("speed", "place"), [(Fraction(1), 0), (AS_FAST_AS_POSSIBLE, 1)])
def test_a_record_with_a_time_far_in_the_future_holds_nothing_and_goes_out_with_what_lies_before_it(
    kafka: KafkaCluster, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, speed: Fraction, place: int
) -> None:
    path = tmp_path / "results.jsonl"
    records = [("c", record) for record in connection("c", [Said(0, get("/1")), Said(100, get("/3"))])]
    [stray] = connection("stray", [Said(100 * 365 * 86_400_000, get("/2"))])
    create_topic(kafka.address, topic, 1)
    records.insert(place, ("stray", stray))
    write(kafka.address, topic, records)

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server, results=path, speed=speed))
            assert sorted(server.paths) == ["/1", "/2", "/3"]
            assert run.accumulator.strays == 3

    asyncio.run(main())
    assert committed(kafka.address, topic) == [3]
    times = {result["source_request"]["target"]: result["source_time_us"] for result in results(path)}
    assert times == {"/1": BEGIN // 1000, "/2": BEGIN // 1000 + 1000 * place, "/3": BEGIN // 1000 + 100_000}
    assert "far in the future" in caplog.text


def letters(address: str, topic: str, count: int) -> list[tuple[bytes | None, dict[str, Any]]]:
    """The dead letters by their offset."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
        found: list[tuple[bytes | None, dict[str, Any]]] = []
        while len(found) < count:
            [message] = consumer.consume(1, TIMEOUT)
            found.append((message.value(), dict(message.headers() or [])))
    finally:
        consumer.close()
    return sorted(found, key=lambda letter: letter[1]["offset"])


def test_a_capture_that_is_scattered_over_partitions_is_refused_with_the_way_to_mend_it(
    kafka: KafkaCluster, topic: str
) -> None:
    create_topic(kafka.address, topic, 3)
    records = connection("c", [Said(0, get("/1")), Said(10, get("/2"))])
    write(kafka.address, topic, ((f"c.{n}", record) for n, record in enumerate(records)))

    async def main() -> None:
        async with serving() as server:
            with pytest.raises(ScatteredCapture, match=f"strandline import --rekey {topic}"):
                await replay(plan(kafka.address, topic, server))
            assert not server.arrivals
            command = ["replay", "--target", f"http://127.0.0.1:{server.port}", "--topic", topic, "--until", "live"]
            ended = await asyncio.to_thread(run_strandline, *command, "--kafka", kafka.address)
            assert ended.returncode == 1
            assert "import --rekey" in ended.stderr

    asyncio.run(main())


def test_half_a_request_at_the_end_is_told_and_left_for_another_time(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "results.jsonl"
    request = post("/late", b"0123456789")
    recording = Recording("node", "half")
    recording.read(Nanos(BEGIN), request[:-5])
    halves = recording.take()
    recording.read(Nanos(BEGIN + MS), request[-5:])
    recording.end_of_request(Nanos(BEGIN + MS))
    rest = recording.take(last=True)
    before = connection("before", [Said(0, get("/before"))])
    after = connection("after", [Said(0, get("/after"))])
    capture(kafka.address, topic, {"before": before, "half": halves, "after": after})

    async def main() -> None:
        async with serving() as server:
            run = await replay(plan(kafka.address, topic, server, results=path))
            assert sorted(server.paths) == ["/after", "/before"]
            assert "1 half at the end, not committed" in summary(run)
            [half] = [result for result in results(path) if result["source_request"]["target"] == "/late"]
            assert (half["id"], half["sent_us"], half["due_us"], half["verdict"]) == ("0-1.0", None, None, "no_target")
            assert half["source_request"]["body"] == "01234"
            assert "the next run finds it" in half["error"]
            assert committed(kafka.address, topic) == [1]
            server.arrivals.clear()
            write(kafka.address, topic, (("half", record) for record in rest))
            run = await replay(plan(kafka.address, topic, server))
            assert sorted(server.paths) == ["/after", "/late"]
            assert run.engine.counters.half == 0

    asyncio.run(main())
    assert committed(kafka.address, topic) == [4]


def test_a_replay_that_finds_nothing_new_says_how_to_begin_anew(kafka: KafkaCluster, topic: str) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"))])})

    async def main() -> None:
        async with serving() as server:
            assert "begins anew" not in summary(await replay(plan(kafka.address, topic, server)))
            again = summary(await replay(plan(kafka.address, topic, server)))
            assert again.endswith(f" in '{topic}'; --from earliest begins anew")

    asyncio.run(main())


def test_what_was_not_read_is_never_told_to_be_done(kafka: KafkaCluster, topic: str) -> None:
    create_topic(kafka.address, topic, 1)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    async def main() -> None:
        async with serving() as server:
            empty = summary(await replay(plan(kafka.address, topic, server)))
            assert empty == f"0 of 0 requests sent; results: none; '{topic}' is empty"
            write(kafka.address, topic, (("c", record) for record in connection("c", [Said(0, get("/1"))])))
            early = summary(await replay(plan(kafka.address, topic, server, until=long_ago)))
            assert early == "0 of 0 requests sent; results: none"

    asyncio.run(main())


def test_while_the_group_assigns_nothing_that_is_said_and_what_is_left_is_not_guessed_at(
    kafka: KafkaCluster, topic: str
) -> None:
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"))])})
    other = {"group.id": f"{topic}-group", "partition.assignment.strategy": "cooperative-sticky"}
    holder = Consumer({"bootstrap.servers": kafka.address, **other})
    holder.subscribe([topic])
    try:
        while not holder.assignment():
            holder.poll(0.1)

        async def main() -> None:
            async with serving() as server, running(plan(kafka.address, topic, server)) as run:
                await until(lambda: run.is_running, "it asks the group")
                assert progress(run) == (
                    "0 sent   0 on their way   waiting for the group to assign partitions "
                    "(a member that was killed keeps its own for up to 45 s)"
                )
                run.stop()
            told = f"the group '{topic}-group' had assigned no partition of '{topic}' by then"
            assert summary(run) == f"0 of 0 requests sent; results: none; {told}; what is left was not looked at"

        asyncio.run(main())
    finally:
        holder.close()


def test_a_topic_that_is_no_capture_has_exit_code_1_and_a_few_lines(kafka: KafkaCluster, topic: str) -> None:
    count = 150
    create_topic(kafka.address, topic, 1)
    write(kafka.address, topic, ((f"k{number}", b'{"price": 1}') for number in range(count)))
    place = ["--topic", topic, "--kafka", kafka.address, "--observe", "127.0.0.1:0", "--until", "live"]
    ended = run_warm("replay", "--target", "http://127.0.0.1:9", *place)
    lines = [line for line in lines_of(ended.stderr) if "status and metrics" not in line]
    assert len([line for line in lines if " is put to " in line]) == 3
    assert len([line for line in lines if "records were put to" in line]) == 2  # 10 and 100
    problem = f"strandline: '{topic}': no request was found, and {count} records are no captured traffic"
    assert lines[5:] == [f"0 of 0 requests sent; results: none; {count} records that cannot be read", problem]
    assert ended.returncode == 1


def test_an_answer_that_is_open_at_the_end_is_told_as_incomplete(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"
    capture(kafka.address, topic, {"c": connection("c", [Said(0, get("/1"), cut)])})

    async def main() -> None:
        async with serving() as server:
            await replay(plan(kafka.address, topic, server, results=tmp_path / "results.jsonl"))

    asyncio.run(main())
    [result] = results(tmp_path / "results.jsonl")
    assert result["source_response"]["complete"] is False
    assert result["source_response"]["length"] == 4
    assert committed(kafka.address, topic) == [1]


def test_an_end_that_is_told_while_the_reference_is_looked_for_counts(kafka: KafkaCluster, topic: str) -> None:
    unmarked = Recording("node", "short")
    unmarked.read(Nanos(BEGIN), get("/unmarked"))
    create_topic(kafka.address, topic, 2)
    write(kafka.address, topic, [("short", record) for record in unmarked.take()], partition=0)
    long = connection("long", [Said(n, get(f"/{n}")) for n in range(200)])
    write(kafka.address, topic, [("long", record) for record in long], partition=1)

    async def main() -> None:
        async with serving() as server, running(plan(kafka.address, topic, server, until=Until.NEVER)) as run:
            await until(lambda: "/unmarked" in server.paths, "the request without a mark arrives")
            run.stop()

    asyncio.run(main())


def test_at_the_end_of_the_log_a_silent_connection_comes_to_its_end(kafka: KafkaCluster, topic: str) -> None:
    half = Recording("node", "half")
    half.read(Nanos(BEGIN), b"GET /half HTT")
    unanswered = connection("c", [Said(0, get("/1"), None)])
    capture(kafka.address, topic, {"half": half.take(), "c": unanswered})

    async def main() -> None:
        async with serving() as server:
            short = timedelta(seconds=0.5)
            chosen = plan(kafka.address, topic, server, packet_timeout=short, until=Until.NEVER)
            async with running(chosen) as run:
                await until(lambda: server.paths == ["/1"], "the whole one arrives")
                await until(lambda: not server.open, "its connection is closed")
                assert server.closed[1] >= due(run, 500)
                await until(lambda: committed(kafka.address, topic) == [2], "both are committed")
                assert run.engine.counters.unsent == 1
                run.stop()

    asyncio.run(main())


def test_a_replay_ends_at_a_time_of_the_source(kafka: KafkaCluster, topic: str) -> None:
    said = [Said(100 * number, get(f"/{number}")) for number in range(5)]
    capture(kafka.address, topic, {"c": connection("c", said)})
    end = datetime.fromtimestamp((BEGIN + 250 * MS) / 1e9, UTC)

    async def main() -> None:
        async with serving() as server:
            await replay(plan(kafka.address, topic, server, until=end))
            assert server.paths == ["/0", "/1", "/2"]
            assert committed(kafka.address, topic) == [3]
            await replay(plan(kafka.address, topic, server, limits=Limits(quiescence=timedelta(0))))
            assert server.paths == ["/0", "/1", "/2", "/3", "/4"]

    asyncio.run(main())


def test_a_replay_begins_at_a_time_of_the_log_or_behind_all_that_there_is(kafka: KafkaCluster, topic: str) -> None:
    create_topic(kafka.address, topic, 1)
    producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True})
    written = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    for number, record in enumerate(connection("c", [Said(number, get(f"/{number}")) for number in range(5)])):
        at = written + timedelta(seconds=number)
        producer.produce(topic, record, "c", timestamp=int(at.timestamp() * 1000))
    assert producer.flush(TIMEOUT) == 0

    async def main() -> None:
        limits = Limits(quiescence=timedelta(0))
        async with serving() as server:
            third = written + timedelta(seconds=2.5)
            await replay(plan(kafka.address, topic, server, start=third, limits=limits))
            assert server.paths == ["/3", "/4"]
            # The group is sent back there, though it has committed all.
            await replay(plan(kafka.address, topic, server, start=third, limits=limits))
            assert server.paths == ["/3", "/4"] * 2
            await replay(plan(kafka.address, topic, server, start=From.EARLIEST, until=third - timedelta(days=999)))
            await replay(plan(kafka.address, topic, server, start=From.LATEST, limits=limits))
            assert server.paths == ["/3", "/4"] * 2
            # Kafka counts from 1970, and takes a millisecond before it for the end of the log.
            before = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=1)
            await replay(plan(kafka.address, topic, server, start=before, limits=limits))
            assert server.paths[4:] == [f"/{number}" for number in range(5)]
        assert committed(kafka.address, topic) == [5]

    asyncio.run(main())
