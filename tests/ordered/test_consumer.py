"""Where reading starts, what is live, commits, faults of the input, and what other libraries make of a batch."""

import asyncio
import gc
import math
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from strandline.core.retry import Policy, Within
from strandline.errors import BrokerUnreachable, GroupInUse, OffsetOutOfRange, OptionError, TopicReplaced, UnknownTopic
from strandline.kafka.partition import Partition
from strandline.ordered import (
    Ago,
    AsyncOrderedConsumer,
    AtTime,
    Committed,
    Earliest,
    Latest,
    OrderedConsumer,
    StartAt,
    Topic,
)
from strandline.ordered.loop import LoopThread
from strandline.stack import KafkaCluster
from strandline.units import Nanos
from tests.ordered.support import Row, create_topic, inversions, offsets, produce, rows_of
from tests.support import TIMEOUT, wait_for
from tests.topics import add_partitions

DAY = 1_767_225_600_000


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@pytest.fixture(scope="module")
def hundred(kafka: KafkaCluster) -> str:
    """A topic of two partitions with fifty records each, a second apart."""
    create_topic(kafka.address, "hundred", 2)
    produce(kafka.address, "hundred", [(n % 2, DAY + n * 1000, f"{n}".encode()) for n in range(100)])
    return "hundred"


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (Earliest(), 0),
        (Latest(), 100),
        (AtTime(at(DAY + 40_000)), 40),
        (AtTime(at(DAY + 40_001)), 41),
        (AtTime(at(DAY + 10**9)), 100),
        (AtTime(at(0)), 0),
        (Committed(), 0),
        (Committed(Latest()), 100),
        (Committed(AtTime(at(DAY + 90_000))), 90),
    ],
)
def test_a_topic_is_read_from_where_it_is_told(kafka: KafkaCluster, hundred: str, start: StartAt, first: int) -> None:
    settings = {**kafka.settings(), "group.id": "never-committed"}
    with OrderedConsumer(settings, [Topic(hundred, start)]) as consumer:
        rows = rows_of(consumer.until_live())
    assert [row.value for row in rows] == [f"{n}".encode() for n in range(first, 100)]


def test_a_time_ago_counts_from_now(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "ago")
    now = int(datetime.now(UTC).timestamp() * 1000)
    produce(kafka.address, "ago", [(0, now - minutes * 60_000, f"{minutes}".encode()) for minutes in (90, 30, 1)])
    with OrderedConsumer(kafka.settings(), [Topic("ago", Ago(timedelta(hours=1)))]) as consumer:
        assert [row.value for row in rows_of(consumer.until_live())] == [b"30", b"1"]


def test_topics_with_different_starts_are_one_stream(kafka: KafkaCluster, hundred: str) -> None:
    create_topic(kafka.address, "other")
    produce(kafka.address, "other", [(0, DAY + n * 1000 + 500, b"other") for n in range(100)])
    with OrderedConsumer(
        kafka.settings(), [Topic(hundred, AtTime(at(DAY + 98_000))), Topic("other", AtTime(at(DAY + 97_000)))]
    ) as consumer:
        (batch,) = consumer.until_live()
    assert batch["topic"].to_pylist() == ["other", "hundred", "other", "hundred", "other"]


def test_what_was_committed_is_not_read_again_and_nothing_else_is_left_out(kafka: KafkaCluster, hundred: str) -> None:
    settings = {**kafka.settings(), "group.id": "resumes"}
    seen = []
    for _ in range(100):
        with OrderedConsumer(settings, [Topic(hundred, Committed())], batch_rows=7) as consumer:
            if consumer.is_live:
                break
            seen += rows_of([consumer.poll(TIMEOUT)])
            consumer.commit()
    assert [row.value for row in seen] == [f"{n}".encode() for n in range(100)]


def test_a_commit_is_behind_what_was_returned_and_not_behind_what_was_read(kafka: KafkaCluster, hundred: str) -> None:
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=5) as consumer:
        assert consumer.positions() == {Partition(hundred, 0): 0, Partition(hundred, 1): 0}
        consumer.poll(TIMEOUT)
        assert consumer.positions() == {Partition(hundred, 0): 3, Partition(hundred, 1): 2}
        with pytest.raises(OptionError, match=r"commit\(\) needs the setting 'group.id'"):
            consumer.commit()


def test_a_group_that_has_members_is_told_in_place_of_a_commit(kafka: KafkaCluster, hundred: str) -> None:
    settings = {**kafka.settings(), "group.id": "has-members"}
    member = Consumer({**settings, "auto.offset.reset": "earliest"})
    try:
        member.subscribe([hundred])
        assert member.poll(TIMEOUT) is not None
        with OrderedConsumer(settings, [Topic(hundred)]) as consumer:
            consumer.poll(TIMEOUT)
            with pytest.raises(GroupInUse, match=r"^group 'has-members' has members: another program reads as this"):
                consumer.commit()
    finally:
        member.close()


def test_a_group_that_committed_beyond_the_end_has_read_another_topic(kafka: KafkaCluster, hundred: str) -> None:
    settings = {**kafka.settings(), "group.id": "of-another-topic"}
    with OrderedConsumer(settings, [Topic(hundred)]) as consumer:
        group = consumer._consumer._group
        assert group is not None
        asyncio.run(group.commit({Partition(hundred, 0): 51}))
    with pytest.raises(OffsetOutOfRange, match="hundred/0 holds offsets 0 to 50, and 51 was asked for"):
        OrderedConsumer(settings, [Topic(hundred, Committed())])


def test_all_is_live_at_the_cutoff_and_what_follows_comes_in_order_too(kafka: KafkaCluster, hundred: str) -> None:
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], cutoff=at(DAY + 30_000)) as consumer:
        assert not consumer.is_live
        before = rows_of(consumer.until_live())
        assert [row.value for row in before] == [f"{n}".encode() for n in range(30)]
        after: list[Row] = []
        while len(after) < 70:
            after += rows_of([consumer.poll(TIMEOUT)])
    assert [row.value for row in after] == [f"{n}".encode() for n in range(30, 100)]


def test_no_row_from_the_cutoff_on_comes_before_all_is_live(kafka: KafkaCluster, hundred: str) -> None:
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], cutoff=at(DAY)) as consumer:
        assert rows_of(consumer.until_live()) == []
        assert [row.value for row in rows_of([consumer.poll(TIMEOUT)])][:1] == [b"0"]


def test_what_comes_later_is_merged_and_waits_for_nobody_for_ever(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "later", 3)
    idle = timedelta(milliseconds=300)
    with OrderedConsumer(kafka.settings(), [Topic("later")], idle_after=idle) as consumer:
        assert consumer.is_live
        assert consumer.poll(0).num_rows == 0
        produce(kafka.address, "later", [(n % 2, DAY + n, b"x") for n in range(1000)])
        rows: list[Row] = []
        while len(rows) < 1000:
            rows += rows_of([consumer.poll(TIMEOUT)])
        produce(kafka.address, "later", [(2, DAY - 5, b"late")])
        assert [row.value for row in rows_of([consumer.poll(TIMEOUT)])] == [b"late"]
    assert offsets(rows) == {0: list(range(500)), 1: list(range(500))}


def test_partitions_that_are_added_are_read_from_their_first_offset(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.ordered.consumer.LOOK_EVERY", 0.1)
    create_topic(kafka.address, "grows")
    produce(kafka.address, "grows", [(0, DAY + n, b"before") for n in range(10)])
    idle = timedelta(milliseconds=50)
    with OrderedConsumer(kafka.settings(), [Topic("grows", Latest())], idle_after=idle) as consumer:
        assert consumer.poll(0).num_rows == 0
        add_partitions(kafka.settings(), "grows", 3)
        produce(kafka.address, "grows", [(n % 3, DAY + n, b"after") for n in range(300)])
        rows: list[Row] = []
        while len(rows) < 300:
            rows += rows_of([consumer.poll(TIMEOUT)])
        assert consumer.positions() == {
            Partition("grows", 0): 110,
            Partition("grows", 1): 100,
            Partition("grows", 2): 100,
        }
        assert consumer.partitions()["partition"].to_pylist() == [0, 1, 2]
    assert offsets(rows) == {0: list(range(10, 110)), 1: list(range(100)), 2: list(range(100))}


def test_what_is_deleted_under_the_reader_is_named_exactly(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "deleted", 2)
    # More than a fetch brings: the rest is fetched when the first part has been returned.
    produce(kafka.address, "deleted", [(n % 2, DAY + n, b"x" * 1000) for n in range(20_000)])
    with OrderedConsumer(kafka.settings(), [Topic("deleted")], buffer_bytes=1 << 20, batch_rows=10) as consumer:
        rows = rows_of([consumer.poll(TIMEOUT)])
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (done,) = admin.delete_records([TopicPartition("deleted", 1, 9_990)]).values()
        done.result(TIMEOUT)
        rows += rows_of(consumer.until_live())
        (loss,) = consumer.losses
    assert loss.partition == Partition("deleted", 1)
    assert loss.end == 9_990
    assert offsets(rows) == {0: list(range(10_000)), 1: [*range(loss.first), *range(9_990, 10_000)]}
    assert inversions(rows) == 0


def test_a_topic_that_is_created_anew_under_the_reader_is_told_and_not_read_on(kafka: KafkaCluster) -> None:
    records = [(0, DAY + n, b"x" * 1000) for n in range(5_000)]
    create_topic(kafka.address, "anew")
    produce(kafka.address, "anew", records)
    with OrderedConsumer(kafka.settings(), [Topic("anew")], buffer_bytes=1 << 20, batch_rows=10) as consumer:
        consumer.poll(TIMEOUT)
        wait_for(lambda: consumer.partitions()["paused"].to_pylist() == [True], "no more is asked for")
        admin = AdminClient({"bootstrap.servers": kafka.address})
        admin.delete_topics(["anew"])["anew"].result(TIMEOUT)
        create_topic(kafka.address, "anew")
        produce(kafka.address, "anew", [*records, *records])
        with pytest.raises(TopicReplaced, match=r"^topic 'anew' was deleted and created anew while it was read"):
            for _ in consumer.until_live():
                pass


def test_a_start_that_was_deleted_is_passed_over_or_refused(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "start-deleted")
    produce(kafka.address, "start-deleted", [(0, DAY + n, b"x") for n in range(20)])
    settings = {**kafka.settings(), "group.id": "start-deleted"}
    with OrderedConsumer(settings, [Topic("start-deleted")], batch_rows=5) as consumer:
        consumer.poll(TIMEOUT)
        consumer.commit()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    (done,) = admin.delete_records([TopicPartition("start-deleted", 0, 12)]).values()
    done.result(TIMEOUT)
    with OrderedConsumer(settings, [Topic("start-deleted", Committed())]) as consumer:
        assert offsets(rows_of(consumer.until_live())) == {0: list(range(12, 20))}
        assert [str(loss) for loss in consumer.losses] == [
            "offsets 5 to 11 of start-deleted/0 are lost: the broker has deleted them"
        ]
    with pytest.raises(OffsetOutOfRange, match="start-deleted/0 holds offsets 12 to 20, and 5 was asked for"):
        OrderedConsumer(settings, [Topic("start-deleted", Committed())], on_missing="error")


def test_the_state_of_every_partition_is_told(kafka: KafkaCluster, hundred: str) -> None:
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=20) as consumer:
        consumer.poll(TIMEOUT)
        wait_for(lambda: sum(consumer.partitions()["held_rows"].to_pylist()) == 80, "all is read")
        table = consumer.partitions()
    assert table.select(["partition", "start", "end", "position", "state", "held_rows"]).to_pylist() == [
        {"partition": n, "start": 0, "end": 50, "position": 50, "state": "caught up", "held_rows": 40} for n in range(2)
    ]
    assert table["timestamp"].to_pylist() == [at(DAY + 98_000), at(DAY + 99_000)]


def test_unknown_topics_are_named(kafka: KafkaCluster) -> None:
    with pytest.raises(UnknownTopic, match=f"Kafka at {kafka.address} has no topic 'nowhere'"):
        OrderedConsumer(kafka.settings(), [Topic("nowhere")])


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match=f"Kafka at 127.0.0.1:{port}: no broker answers"):
            OrderedConsumer({"bootstrap.servers": f"127.0.0.1:{port}"}, [Topic("t")])


def test_how_long_it_is_tried_at_the_start_is_told(
    kafka: KafkaCluster, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.kafka.cluster.CONNECT_WITHIN", TIMEOUT)
    monkeypatch.setattr("strandline.kafka.cluster.ANSWER_WITHIN", TIMEOUT)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings = {"bootstrap.servers": f"127.0.0.1:{nobody.getsockname()[1]}"}
        with pytest.raises(BrokerUnreachable, match="no broker answers"):
            OrderedConsumer(settings, [Topic("t")], start_within=timedelta(0))
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], start_within=timedelta(0)) as consumer:
        assert not consumer.is_live


def test_a_server_that_is_no_kafka_is_told(monkeypatch: pytest.MonkeyPatch, kafka: KafkaCluster) -> None:
    impatient(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def talk() -> None:
            other = await asyncio.start_server(_speak_http, sock=server)
            async with other:
                with pytest.raises(BrokerUnreachable) as caught:
                    async with AsyncOrderedConsumer({"bootstrap.servers": f"127.0.0.1:{port}"}, [Topic("t")]):
                        pass
                assert "this is not a Kafka broker" in str(caught.value.__cause__)

        asyncio.run(talk())


async def _speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at the first failure: how long a reader tries is not what is looked at."""
    monkeypatch.setattr("strandline.kafka.cluster.AGAIN", Policy(backoff={}, until=Within(Nanos(0))))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "'bootstrap.servers' is missing"),
        ({"bootstrap.servers": ["127.0.0.1:1"]}, "'bootstrap.servers' takes a value of type str"),
        ("127.0.0.1:1", "settings are a mapping such as"),
        ({"bootstrap.servers": "127.0.0.1:port"}, "'127.0.0.1:port' is not host:port"),
        ({"bootstrap.servers": "127.0.0.1:²"}, "'127.0.0.1:²' is not host:port"),
        ({"bootstrap.servers": "http://127.0.0.1:1"}, "'http://127.0.0.1:1' is not host:port"),
        ({"bootstrap.servers": "127.0.0.1:1", "sasl.password": "p"}, "a user is given, and security.protocol is not"),
        ({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "magic"}, "security.protocol"),
        ({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "sesion.timeout.ms": "5"}, "sesion.timeout.ms"),
        ({"bootstrap.servers": "127.0.0.1:1", "auto.ofset.reset": "latest"}, "auto.ofset.reset"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        OrderedConsumer(settings, [Topic("t")])


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("batch_rows", "5", "batch_rows takes a value of type int, not '5'"),
        ("batch_rows", True, "batch_rows takes a value of type int, not True"),
        ("buffer_bytes", 2.5, "buffer_bytes takes a value of type int, not 2.5"),
        ("cutoff", "2026-01-01", "cutoff takes a value of type datetime, not '2026-01-01'"),
        ("idle_after", 5, "idle_after takes a value of type timedelta, not 5"),
        ("max_ahead", timedelta.max, "it takes 0 to 36525 days"),
        ("start_within", timedelta(-1), "start_within is -1 day, 0:00:00; it takes 0 to 36525 days"),
        ("on_corrupt", None, "on_corrupt is 'None'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(name: str, value: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        OrderedConsumer({"bootstrap.servers": "127.0.0.1:1"}, [Topic("t")], **{name: value})


def test_wrong_arguments_are_refused() -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(OptionError, match="no topic to read"):
        OrderedConsumer(settings, [])
    with pytest.raises(OptionError, match="topic 't' is named twice"):
        OrderedConsumer(settings, [Topic("t"), Topic("t", Latest())])
    with pytest.raises(OptionError, match="batch_rows is 0"):
        OrderedConsumer(settings, [Topic("t")], batch_rows=0)
    with pytest.raises(OptionError, match="a buffer of 5 bytes"):
        OrderedConsumer(settings, [Topic("t")], buffer_bytes=5)
    with pytest.raises(OptionError, match="no time zone"):
        OrderedConsumer(settings, [Topic("t")], cutoff=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(OptionError, match="no time zone"):
        AtTime(datetime(2026, 1, 1))  # noqa: DTZ001
    wrong: Any
    for wrong in (Latest, "latest", None):
        with pytest.raises(OptionError, match="topic 't' starts at"):
            Topic("t", wrong)
    for wrong in (3, "", "no name"):
        with pytest.raises(OptionError, match="is not the name of a topic"):
            Topic(wrong)
    for wrong in ("t", ["t"], Topic("t"), (Topic(name) for name in "tu")):
        with pytest.raises(OptionError, match="topics are a list such as"):
            OrderedConsumer(settings, wrong)
    wrong = "latest"
    with pytest.raises(OptionError, match="Committed otherwise takes"):
        Committed(wrong)
    with pytest.raises(OptionError, match="AtTime takes a datetime"):
        AtTime(wrong)
    with pytest.raises(OptionError, match="Ago takes a timedelta"):
        Ago(wrong)
    with pytest.raises(OptionError, match="Ago takes up to 36525 days back"):
        Ago(timedelta.max)
    with pytest.raises(OptionError, match="isolation is 'dirty'"):
        OrderedConsumer(settings, [Topic("t")], isolation="dirty")  # type: ignore[arg-type]


# In a process of its own: DuckDB's bindings print at exit what of them is still referred to.
QUERY = """
import sys
import duckdb, pyarrow as pa

rows = pa.ipc.open_stream(sys.stdin.buffer).read_all()
query = 'select topic, max("offset"), count(value), max(len(headers)) from rows group by all'
with duckdb.connect() as database:
    database.register("rows", rows)
    print(database.execute(query).fetchall())
"""


def test_keys_values_and_headers_are_usable_by_pandas_polars_and_duckdb(kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "usable")
    producer = Producer(kafka.settings())
    headers: list[tuple[str, str | bytes | None]] = [("tide", b"high"), ("none", None)]
    producer.produce("usable", b"value", b"key", timestamp=DAY, headers=headers)
    producer.produce("usable", None, None, timestamp=DAY + 1)
    assert producer.flush(TIMEOUT) == 0
    with OrderedConsumer(kafka.settings(), [Topic("usable")]) as consumer:
        (batch,) = consumer.until_live()
    batch.validate(full=True)
    frame = batch.to_pandas()
    assert frame["timestamp"].tolist() == [at(DAY), at(DAY + 1)]
    assert frame["headers"][0].tolist() == [{"key": "tide", "value": b"high"}, {"key": "none", "value": None}]
    polar = pl.from_arrow(pa.Table.from_batches([batch]))
    assert isinstance(polar, pl.DataFrame)
    assert polar.select("key", "value", "topic", "offset").rows() == [
        (b"key", b"value", "usable", 0),
        (None, None, "usable", 1),
    ]
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    queried = subprocess.run(
        [sys.executable, "-c", QUERY],
        input=stream.getvalue().to_pybytes(),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (queried.stdout, queried.stderr) == (b"[('usable', 1, 1, 2)]\n", b"")


def test_a_consumer_works_where_an_event_loop_runs_already(kafka: KafkaCluster, hundred: str) -> None:
    async def as_in_a_notebook() -> int:
        with OrderedConsumer(kafka.settings(), [Topic(hundred)]) as consumer:
            return sum(batch.num_rows for batch in consumer.until_live())

    assert asyncio.run(as_in_a_notebook()) == 100


def test_the_asyncio_twin_reads_the_same(kafka: KafkaCluster, hundred: str) -> None:
    async def read() -> list[bytes | None]:
        async with AsyncOrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=33) as consumer:
            batches = [batch async for batch in consumer.until_live()]
        return [row.value for row in rows_of(batches)]

    assert asyncio.run(read()) == [f"{n}".encode() for n in range(100)]


def test_a_poll_that_is_given_up_loses_no_row_and_commits_none(kafka: KafkaCluster, hundred: str) -> None:
    async def read() -> list[bytes | None]:
        rows = []
        async with AsyncOrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=7) as consumer:
            while not consumer.is_live:
                before = consumer.positions()
                poll = asyncio.create_task(consumer.poll(TIMEOUT))
                while consumer._running()._leaving is None and not poll.done():
                    await asyncio.sleep(0)
                poll.cancel()
                await asyncio.wait([poll])
                if poll.cancelled():
                    assert consumer.positions() == before
                    rows += rows_of([await consumer.poll(TIMEOUT)])
                else:
                    rows += rows_of([poll.result()])
        return [row.value for row in rows]

    assert asyncio.run(read()) == [f"{n}".encode() for n in range(100)]


def test_a_poll_whose_thread_is_interrupted_loses_no_row_and_commits_none(
    kafka: KafkaCluster, hundred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=7) as consumer:
        rows = []
        while not consumer.is_live:
            before = consumer.positions()
            with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
                patched.setattr(consumer._loop, "do", partial(_interrupted, consumer._loop.do))
                consumer.poll(TIMEOUT)
            assert consumer.positions() == before
            assert not consumer.is_live
            rows += rows_of([consumer.poll(TIMEOUT)])
    assert [row.value for row in rows] == [f"{n}".encode() for n in range(100)]


def _interrupted(do: Callable[[Any], object], work: object) -> None:
    """What a signal does to a thread that is about to get a result."""
    do(work)
    raise KeyboardInterrupt


def test_signals_at_any_moment_of_a_poll_lose_no_row(kafka: KafkaCluster, hundred: str) -> None:
    interrupted = 0

    def handle(_signal: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not LoopThread.do.__code__:
            frame = frame.f_back
        if frame is not None:
            raise InterruptedError

    def shoot() -> None:
        while not done.wait(random.random() / 500):
            signal.pthread_kill(target, signal.SIGUSR1)

    def read() -> list[bytes | None]:
        nonlocal interrupted
        values: list[bytes | None] = []
        with OrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=3) as consumer:
            done.clear()
            shooter = threading.Thread(target=shoot)
            shooter.start()
            try:
                while not consumer.is_live:
                    try:
                        batch = consumer.poll(TIMEOUT)
                    except InterruptedError:
                        interrupted += 1
                        continue
                    values += batch["value"].to_pylist()
            finally:
                done.set()
                shooter.join()
        return values

    target, done = threading.get_ident(), threading.Event()
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        # On a single core all polls may be over before the other thread has its turn.
        while not interrupted:
            assert read() == [f"{n}".encode() for n in range(100)]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_polls_of_several_threads_bring_each_row_once(kafka: KafkaCluster, hundred: str) -> None:
    rows: list[Row] = []
    with OrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=3) as consumer:

        def read() -> None:
            while not consumer.is_live:
                rows.extend(rows_of([consumer.poll(0.01)]))

        with ThreadPoolExecutor() as pool:
            for reader in [pool.submit(read) for _ in range(3)]:
                reader.result(TIMEOUT)
    assert sorted((row.partition, row.offset) for row in rows) == [(p, n) for p in range(2) for n in range(50)]


def test_polls_of_several_tasks_bring_each_row_once_and_in_order(kafka: KafkaCluster, hundred: str) -> None:
    async def read() -> list[Row]:
        rows = []
        async with AsyncOrderedConsumer(kafka.settings(), [Topic(hundred)], batch_rows=3) as consumer:
            while not consumer.is_live:
                rows += rows_of(await asyncio.gather(*(consumer.poll(0.01) for _ in range(3))))
        return rows

    assert [row.value for row in asyncio.run(read())] == [f"{n}".encode() for n in range(100)]


def test_a_consumer_that_is_forgotten_closes_in_silence(
    kafka: KafkaCluster, hundred: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    threads = threading.active_count()
    consumer = OrderedConsumer({**kafka.settings(), "group.id": "forgotten"}, [Topic(hundred)], batch_rows=7)
    consumer.poll(TIMEOUT)
    with pytest.warns(ResourceWarning, match="an OrderedConsumer was not closed"):
        del consumer
        gc.collect()
    wait_for(lambda: threading.active_count() <= threads, "its threads have ended")
    gc.collect()
    assert (capfd.readouterr(), caplog.messages) == (("", ""), [])


@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1, 86_401, "1", None])
def test_a_poll_waits_for_a_number_of_seconds(kafka: KafkaCluster, hundred: str, timeout: Any) -> None:
    problem = re.escape(f"poll takes 0 to 86,400 seconds, not {timeout!r}")
    with (
        OrderedConsumer(kafka.settings(), [Topic(hundred)]) as consumer,
        pytest.raises(OptionError, match=problem),
    ):
        consumer.poll(timeout)


def test_whoever_polls_a_consumer_that_is_closed_is_told(kafka: KafkaCluster, hundred: str) -> None:
    async def read() -> None:
        consumer = await AsyncOrderedConsumer(kafka.settings(), [Topic(hundred, Latest())]).start()
        poll = asyncio.create_task(consumer.poll(TIMEOUT))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(OptionError, match="the consumer is closed"):
            await poll

    asyncio.run(read())


def test_a_consumer_that_nobody_closes_is_silent_when_python_ends(kafka: KafkaCluster, hundred: str) -> None:
    code = (
        "import sys; from strandline.ordered import OrderedConsumer, Topic\n"
        "consumer = OrderedConsumer({'bootstrap.servers': sys.argv[1]}, [Topic(sys.argv[2])])\n"
        "print(sum(batch.num_rows for batch in consumer.until_live()))"
    )
    command = [sys.executable, "-c", code, kafka.address, hundred]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "100\n", "")


def test_a_consumer_leaves_nothing_open(kafka: KafkaCluster, hundred: str) -> None:
    def is_socket(link: Path) -> bool:
        try:
            return "socket" in str(link.readlink())
        except FileNotFoundError:  # closed since it was listed
            return False

    def sockets() -> int:
        return sum(map(is_socket, Path("/proc/self/fd").iterdir()))

    before = sockets()
    for _ in range(3):
        with OrderedConsumer(kafka.settings(), [Topic(hundred)]) as consumer:
            consumer.poll(TIMEOUT)
        consumer.close()
        with pytest.raises(OptionError, match="the consumer is closed"):
            consumer.poll()
    wait_for(lambda: sockets() <= before, "all connections are closed")
