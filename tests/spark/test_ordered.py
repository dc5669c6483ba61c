"""What Spark reads is what one machine reads, row for row: batch and streaming, however cut, killed and restarted."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from strandline.ordered import OrderedConsumer, Topic
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic, produce, rows_of
from tests.spark.into_files import into_files
from tests.support import TIMEOUT, wait_for
from tests.topics import add_partitions

DAY = 1_767_225_600_000
ROWS = 20_000
COLUMNS = ("partition", "offset", "timestamp", "value")


@pytest.fixture(scope="module")
def mixed(kafka: KafkaCluster) -> str:
    """Jitter, 90 % of the rows in one partition, a bulk load of one time, an aborted and an open transaction."""
    topic = "spark-mixed"
    create_topic(kafka.address, topic, 4)
    chance = random.Random(4)
    written = []
    for number in range(ROWS):
        stamp = DAY + (7_000 if 7_000 <= number < 12_000 else number) + chance.randrange(-40, 40)
        partition = 0 if chance.random() < 0.9 else chance.randrange(1, 3)
        written.append((partition, DAY + 7_000 if 8_000 <= number < 11_000 else stamp, f"{number}".encode()))
    settings: dict[str, str | int] = {"batch.num.messages": 500, "compression.type": "lz4"}
    produce(kafka.address, topic, written, **settings)
    transactions(kafka.address, topic)
    return topic


def transactions(address: str, topic: str) -> None:
    """One that is aborted, and one that stays open with rows behind it; the producer is left to the broker."""
    aborted = Producer({"bootstrap.servers": address, "transactional.id": f"{topic}-aborted"})
    aborted.init_transactions(TIMEOUT)
    aborted.begin_transaction()
    aborted.produce(topic, b"aborted", partition=1, timestamp=DAY + 90_000_000)
    assert aborted.flush(TIMEOUT) == 0
    aborted.abort_transaction(TIMEOUT)
    opened = Producer(
        {"bootstrap.servers": address, "transactional.id": f"{topic}-open", "transaction.timeout.ms": 900_000}
    )
    opened.init_transactions(TIMEOUT)
    opened.begin_transaction()
    opened.produce(topic, b"open", partition=3, timestamp=DAY + 100)
    assert opened.flush(TIMEOUT) == 0
    produce(address, topic, [(3, DAY + 200, b"behind the open one")])


def on_one_machine(kafka: KafkaCluster, topic: str) -> list[tuple[Any, ...]]:
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        rows = rows_of(consumer.until_live())
    return [(row.partition, row.offset, row.timestamp, row.value) for row in rows]


def plain(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Rows of Spark as those of one machine."""
    return [
        (r.partition, r.offset, None if r.timestamp is None else round(r.timestamp.timestamp() * 1000), bytes(r.value))
        for r in rows
    ]


def reading(spark: SparkSession, kafka: KafkaCluster, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("kafka_ordered").option("kafka.bootstrap.servers", kafka.address)
    return source.option("topics", topic).options(**options).load()


@pytest.mark.parametrize("slices", ["1", "2", "7"])
def test_a_batch_is_what_one_machine_reads(spark: SparkSession, kafka: KafkaCluster, mixed: str, slices: str) -> None:
    frame = reading(spark, kafka, mixed, slices=slices)
    assert frame.rdd.getNumPartitions() == int(slices)
    rows = frame.collect()
    assert plain(rows) == on_one_machine(kafka, mixed)
    assert not any(row.late for row in rows)
    assert {row.topic for row in rows} == {mixed}


def test_a_batch_begins_and_ends_where_it_is_told(spark: SparkSession, kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "spark-range", 2)
    produce(kafka.address, "spark-range", [(n % 2, DAY + n * 1000, f"{n}".encode()) for n in range(100)])
    frame = reading(spark, kafka, "spark-range", start="2026-01-01T00:00:10Z", end="2026-01-01T00:00:20Z", slices="3")
    assert [int(row.value) for row in frame.collect()] == list(range(10, 20))
    assert reading(spark, kafka, "spark-range", start="latest").count() == 0
    assert reading(spark, kafka, "spark-range", end="-1h").count() == 100


def test_the_example_of_the_readme_shows_the_rows_of_two_topics_in_their_order(
    spark: SparkSession, kafka: KafkaCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    hour = 3_600_000
    for topic, partitions in {"events": 3, "metrics": 1}.items():
        create_topic(kafka.address, f"readme-{topic}", partitions)
    events = [(n % 3, DAY + 6 * hour + (n - 1) * 250, b'{"id": %d}' % n) for n in range(5)]
    produce(kafka.address, "readme-events", [*events, (0, DAY + 12 * hour, b"too late")])
    produce(kafka.address, "readme-metrics", [(0, DAY + 6 * hour, b'{"load": 5}')])
    text = (Path(__file__).parents[2] / "README.md").read_text()
    code = text[text.index("events = (\n    spark.read") :].partition("```")[0]
    code = code.replace("127.0.0.1:9092", kafka.address).replace('"events,metrics"', '"readme-events,readme-metrics"')
    exec(code, {"spark": spark})  # noqa: S102  (our own example)
    rows = [line.split("|")[1:-1] for line in capfd.readouterr().out.splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["timestamp", "topic", "partition", "offset", "value"],
        ["2026-01-01 06:00:00", "readme-events", "1", "0", '{"id": 1}'],
        ["2026-01-01 06:00:00", "readme-metrics", "0", "0", '{"load": 5}'],
        ["2026-01-01 06:00:00.25", "readme-events", "2", "0", '{"id": 2}'],
        ["2026-01-01 06:00:00.5", "readme-events", "0", "1", '{"id": 3}'],
        ["2026-01-01 06:00:00.75", "readme-events", "1", "1", '{"id": 4}'],
    ]


def test_headers_and_nulls_reach_spark(spark: SparkSession, kafka: KafkaCluster) -> None:
    create_topic(kafka.address, "spark-headers")
    producer = Producer(kafka.settings())
    headers: list[tuple[str, str | bytes | None]] = [("tide", b"high"), ("none", None)]
    producer.produce("spark-headers", None, b"key", timestamp=DAY, headers=headers)
    assert producer.flush(TIMEOUT) == 0
    (row,) = reading(spark, kafka, "spark-headers").collect()
    assert (row.key, row.value) == (bytearray(b"key"), None)
    assert [(header.key, header.value) for header in row.headers] == [("tide", bytearray(b"high")), ("none", None)]


def test_a_wrong_option_is_refused_through_spark(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="option 'topcis' is unknown; did you mean 'topics'"):
        reading(spark, kafka, "t", topcis="t").count()
    with pytest.raises(PySparkException, match="option 'end' is for a batch; a stream has none"):
        streamed(spark, kafka, "t", tmp_path, end="latest")


def test_an_unknown_topic_is_named(spark: SparkSession, kafka: KafkaCluster) -> None:
    with pytest.raises(PySparkException, match="has no topic 'nowhere'"):
        reading(spark, kafka, "nowhere").count()


def streamed(
    spark: SparkSession,
    kafka: KafkaCluster,
    topic: str,
    directory: Path,
    act: Callable[[list[Row]], object] = len,
    /,
    **options: str,
) -> list[list[Row]]:
    """All that is available now, epoch by epoch, in the order in which Spark has the rows; `act` may fail an epoch."""
    found: dict[int, list[Row]] = {}

    def take(frame: DataFrame, epoch: int) -> None:
        found[epoch] = frame.collect()
        act(found[epoch])

    source = spark.readStream.format("kafka_ordered").option("kafka.bootstrap.servers", kafka.address)
    writer = source.option("topics", topic).options(**options).load().writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(directory)).trigger(availableNow=True).start()
    assert query.awaitTermination(int(3 * TIMEOUT)), "it has not ended"
    return [found[epoch] for epoch in sorted(found)]


@pytest.mark.parametrize("options", [{}, {"maxRowsPerEpoch": "6000", "slices": "2"}, {"maxSpanPerEpoch": "5s"}])
def test_a_stream_is_what_one_machine_reads(
    spark: SparkSession, kafka: KafkaCluster, mixed: str, tmp_path: Path, options: dict[str, str]
) -> None:
    epochs = streamed(spark, kafka, mixed, tmp_path, **options)
    rows = [row for epoch in epochs for row in epoch]
    assert plain(rows) == on_one_machine(kafka, mixed)
    assert not any(row.late for row in rows)
    if options:
        assert len(epochs) > 2
    if "maxRowsPerEpoch" in options:
        assert max(map(len, epochs)) <= 6000


def test_a_stream_goes_on_from_its_checkpoint_and_marks_what_is_late(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "spark-late"
    create_topic(kafka.address, topic, 2)
    produce(kafka.address, topic, [(0, DAY + n, b"first") for n in range(10)])
    assert sum(map(len, streamed(spark, kafka, topic, tmp_path))) == 10
    assert streamed(spark, kafka, topic, tmp_path) == []
    produce(
        kafka.address,
        topic,
        [(1, DAY + 5, b"late"), (1, DAY + 9, b"just"), (0, DAY + 3, b"back"), (1, DAY + 50, b"new")],
    )
    rows = [row for epoch in streamed(spark, kafka, topic, tmp_path) for row in epoch]
    # What goes back within its own partition has its partition's time, and is not late.
    assert [(bytes(row.value), row.late) for row in rows] == [
        (b"late", True),
        (b"back", False),
        (b"just", False),
        (b"new", False),
    ]


def test_what_was_deleted_before_a_stream_came_to_it_is_an_error_or_passed_over_as_it_is_told(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "spark-deleted"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY + n, b"read") for n in range(3)])
    assert sum(map(len, streamed(spark, kafka, topic, tmp_path))) == 3
    produce(kafka.address, topic, [(0, DAY + n, b"unread") for n in range(3, 6)])
    admin = AdminClient({**kafka.settings()})
    deleted = admin.delete_records([TopicPartition(topic, 0, 5)])
    assert [future.result(TIMEOUT).low_watermark for future in deleted.values()] == [5]
    with pytest.raises(PySparkException, match="spark-deleted/0 holds offsets 5 to 6, and 3 was asked for"):
        streamed(spark, kafka, topic, tmp_path)
    epochs = streamed(spark, kafka, topic, tmp_path, onMissing="earliest")
    assert [row.offset for epoch in epochs for row in epoch] == [5]


@pytest.mark.parametrize(("start", "first"), [("earliest", 0), ("latest", 10)])
def test_a_stream_that_fails_in_its_first_epoch_reads_that_one_again(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path, start: str, first: int
) -> None:
    topic = f"spark-first-{start}"
    create_topic(kafka.address, topic, 2)
    produce(kafka.address, topic, [(n % 2, DAY + n, f"{n}".encode()) for n in range(10)])
    seen: list[Row] = []

    def fail(rows: list[Row]) -> None:
        seen.extend(rows)
        raise ZeroDivisionError

    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        streamed(spark, kafka, topic, tmp_path, fail, start=start)
    assert [path.name for path in (tmp_path / "offsets").glob("[0-9]*")] == ["0"]
    assert not has_done(tmp_path / "commits", 1)
    produce(kafka.address, topic, [(n % 2, DAY + n, f"{n}".encode()) for n in range(10, 20)])
    # Where the first epoch starts is not in the checkpoint. Spark asks again, and by now the latest is another.
    epochs = streamed(spark, kafka, topic, tmp_path, start="latest")
    assert epochs[0] == seen
    assert [int(row.value) for epoch in epochs for row in epoch] == list(range(first, 20))


def test_a_partition_that_is_added_is_read_by_a_running_stream(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "spark-added"
    create_topic(kafka.address, topic, 1)
    produce(kafka.address, topic, [(0, DAY, b"first")])
    found: list[bytes] = []
    source = spark.readStream.format("kafka_ordered").option("kafka.bootstrap.servers", kafka.address)
    writer = source.option("topics", topic).load().writeStream
    writer = writer.foreachBatch(lambda frame, _: found.extend(bytes(row.value) for row in frame.collect()))
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="200 milliseconds").start()
    try:
        wait_for(lambda: found == [b"first"], "the first epoch")
        add_partitions(kafka.settings(), topic, 2)
        produce(kafka.address, topic, [(1, DAY + 5, b"second")])
        wait_for(lambda: found == [b"first", b"second"], "the row of the new partition")
        assert query.exception() is None
    finally:
        query.stop()


@pytest.mark.timeout(8 * TIMEOUT)
@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_stream_that_is_killed_goes_on_with_nothing_lost_and_nothing_twice(
    spark: SparkSession, kafka: KafkaCluster, mixed: str, tmp_path: Path, kills: int
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    what = (kafka.address, mixed, str(out), str(checkpoint))
    commits = checkpoint / "commits"
    anywhere = [("offsets", 1), ("commits", 2)]  # in the first epoch, and after some
    for log, count in anywhere if kills > 1 else [random.choice(anywhere)]:
        said = tmp_path / "said"
        with said.open("wb") as to:
            command = [sys.executable, "-m", "tests.spark.into_files", *what]
            process = subprocess.Popen(command, stdout=to, stderr=to, start_new_session=True)
        has_done_some = partial(has_done, checkpoint / log, count)
        try:
            # A Spark application is slow to come up on a busy machine.
            wait_for(lambda p=process, d=has_done_some: p.poll() or d(), "some epochs are done", 4 * TIMEOUT)  # type: ignore[misc]
            assert process.poll() is None, said.read_text()
        finally:
            kill_tree(process)
    # It goes on in another application, which is up.
    into_files(spark, *what)
    rows = spark.read.parquet(str(out)).collect()
    expected = on_one_machine(kafka, mixed)
    assert sorted(plain(rows)) == sorted(expected)
    assert len(list(commits.glob("[0-9]*"))) >= len(expected) // 3000


def has_done(log: Path, epochs: int) -> bool:
    return log.exists() and len(list(log.glob("[0-9]*"))) >= epochs


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """End a Spark application at once, its Java and Python processes too: all of one session of the system."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(TIMEOUT)


def test_the_progress_of_a_stream_tells_the_ends(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = "spark-progress"
    create_topic(kafka.address, topic, 2)
    produce(kafka.address, topic, [(0, DAY + n, b"x") for n in range(10)])
    source = spark.readStream.format("kafka_ordered").option("kafka.bootstrap.servers", kafka.address)
    writer = source.option("topics", topic).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="200 milliseconds").start()
    try:
        wait_for(lambda: any(told["numInputRows"] == 10 for told in query.recentProgress), "the first epoch")
        produce(kafka.address, topic, [(1, DAY + 20, b"x") for _ in range(5)])
        seen: list[dict[str, Any]] = []

        def is_told() -> bool:
            seen[:] = [json.loads(p["sources"][0]["latestOffset"] or "{}") for p in query.recentProgress]
            return any(told.get("offsets", {}).get(topic) == {"0": 10, "1": 5} for told in seen)

        wait_for(is_told, f"the ends of both partitions are told: {seen}")
    finally:
        query.stop()


CLUSTER = """
import json, sys
from strandline.spark import register, session
from tests.spark.jvm import QUICK

address, topic = sys.argv[1:]
spark = session("cluster", master="local-cluster[2,1,1024]", options=QUICK)
register(spark)
source = spark.read.format("kafka_ordered").option("kafka.bootstrap.servers", address).option("topics", topic)
rows = source.option("slices", "4").load().select("partition", "offset").collect()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(json.dumps({"executors": executors, "rows": [list(row) for row in rows]}))
spark.stop()
"""


@pytest.mark.soak
def test_a_cluster_of_two_executors_reads_the_same(kafka: KafkaCluster, mixed: str) -> None:
    # Executors are started by Spark's own scripts, which look here for them.
    env = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", CLUSTER, kafka.address, mixed]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=3 * TIMEOUT, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["executors"] == 2
    assert found["rows"] == [[partition, offset] for partition, offset, _, _ in on_one_machine(kafka, mixed)]
