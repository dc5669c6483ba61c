"""`http_traffic` on a real broker: the table that a replay would send, however it is read."""

import asyncio
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.errors import OptionError
from strandline.kafka.partition import Partition
from strandline.ordered.merge import Part
from strandline.spark import http_traffic
from strandline.spark.traffic import RECORDS_A_TASK, shares
from strandline.spark.traffic_options import TrafficOptions
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic
from tests.replay.support import Said, capture, connection, get, plan, post, replay, results, serving, write
from tests.spark.test_ordered import has_done, kill_tree
from tests.support import TIMEOUT, wait_for
from tests.wire import captures

PARTITIONS = 3
EXPIRY = f"{captures.EXPIRY_MS}ms"


def traffic(spark: SparkSession, kafka: KafkaCluster, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("http_traffic").option("kafka.bootstrap.servers", kafka.address)
    return source.option("topic", topic).options(**options).load()


def test_the_table_has_what_a_replay_of_the_same_topic_sends(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "traffic-replayed"
    said = [Said(10 * n, post(f"/things/{n}?a=b", b"x" * n) if n % 2 else get(f"/things/{n}")) for n in range(6)]
    capture(kafka.address, topic, {f"c{n}": connection(f"c{n}", said, close_at=100) for n in range(5)}, PARTITIONS)

    async def main() -> None:
        async with serving() as server:
            await replay(plan(kafka.address, topic, server, results=tmp_path / "results.jsonl"))

    asyncio.run(main())
    sent = {
        found["id"]: (
            found["connection"],
            found["source_request"]["method"],
            found["source_request"]["target"],
            found["source_request"].get("body", ""),
            found["source_response"]["status"],
            [offset for _, offset in found["records"]],
            found["source_time_us"],
        )
        for found in results(tmp_path / "results.jsonl")
    }
    rows = traffic(spark, kafka, topic).selectExpr(
        "id",
        "connection",
        "request.method",
        "concat_ws('?', request.path, request.query) target",
        "decode(request.body, 'UTF-8') body",
        "status",
        "records",
        "unix_micros(request.first_byte) at",
    )
    assert {row.id: tuple(row)[1:] for row in rows.collect()} == sent
    assert len(sent) == 30


@pytest.fixture(scope="module")
def mixed(kafka: KafkaCluster) -> str:
    """All that may be in a capture, over several partitions."""
    topic = "traffic-mixed"
    create_topic(kafka.address, topic, PARTITIONS)
    write(kafka.address, topic, captures.records(1, 120))
    return topic


def test_plain_sql_asks_the_table(spark: SparkSession, kafka: KafkaCluster, mixed: str) -> None:
    frame = traffic(spark, kafka, mixed, expireAfter=EXPIRY)
    frame.createOrReplaceTempView("traffic")
    # What the page asks is understood; its answers are those of a million transactions.
    page = (Path(__file__).parents[2] / "docs" / "traffic.md").read_text()
    shown = [spark.sql(query).columns for query in re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    assert [columns[1] for columns in shown] == ["endpoint", "endpoint", "p50"]
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    assert len({row["id"] for row in rows}) == len(rows) > 200
    asked: list[Any] = spark.sql("""
        SELECT request.method, count(*) AS n, avg(CAST(status >= 500 AS INT)) AS errors, max(duration_ms) AS slowest
        FROM traffic WHERE request.headers['x-many'][1] = 'again' GROUP BY 1 ORDER BY 1
    """).collect()
    for row in asked:
        of_method = [found["request"] | found for found in rows if found["request"]["method"] == row.method]
        of_method = [found for found in of_method if "again" in found["headers"].get("x-many", [])]
        assert row.n == len(of_method)
        answered = [found["status"] >= 500 for found in of_method if found["status"]]
        assert row.errors == pytest.approx(sum(answered) / len(answered))
        assert row.slowest == max(found["duration_ms"] for found in of_method if found["duration_ms"] is not None)
    assert [row.method for row in asked] == ["GET", "POST", "PUT"]
    assert {row["completeness"] for row in rows} == {
        "complete",
        "response_incomplete",
        "no_response",
        "request_incomplete",
    }


def test_a_range_that_begins_within_a_connection_has_the_transactions_that_begin_in_it(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    topic = "traffic-range"
    create_topic(kafka.address, topic, 1)
    first, second, third = connection("c", [Said(10 * n, get(f"/{n}")) for n in range(3)])
    write(kafka.address, topic, [("c", first)])
    begin = traffic(spark, kafka, topic).selectExpr("now()").first()
    assert begin is not None
    write(kafka.address, topic, [("c", second), ("c", third)])
    found = traffic(spark, kafka, topic, start=begin[0].astimezone().isoformat())
    assert [(row["path"], row["index"]) for row in found.select("request.path", "index").collect()] == [
        ("/1", 1),
        ("/2", 2),
    ]
    assert traffic(spark, kafka, topic, start="latest").count() == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"topics": "t"}, "option 'topics' is unknown; did you mean 'topic'?"),
        ({"maxRowsPerEpoch": "1"}, "option 'maxRowsPerEpoch' is unknown"),
        ({"bodyBytes": "-1"}, "option 'bodyBytes' is '-1'"),
        ({"onUnreadable": "bury"}, "option 'onUnreadable' is 'bury'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        TrafficOptions.parse({"kafka.bootstrap.servers": "localhost:9", **options})
    assert problem in str(caught.value)


def test_a_scattered_capture_and_an_unreadable_record_are_refused_by_their_place(
    spark: SparkSession, kafka: KafkaCluster
) -> None:
    records = connection("c", [Said(0, get("/1"))])
    for topic, key, value in (("traffic-scattered", "c.1", records[0]), ("traffic-unreadable", "c", b"\xff")):
        create_topic(kafka.address, topic, 2)
        write(kafka.address, topic, [(key, value)], partition=1)
    with pytest.raises(PySparkException, match="strandline import --rekey traffic-scattered"):
        traffic(spark, kafka, "traffic-scattered").count()
    with pytest.raises(PySparkException, match=r"offset 0 of traffic-unreadable/1 is no TrafficStream"):
        traffic(spark, kafka, "traffic-unreadable").count()
    assert traffic(spark, kafka, "traffic-unreadable", onUnreadable="skip").count() == 0


def test_small_partitions_share_a_task_and_empty_ones_have_none() -> None:
    sizes = [10, 0, RECORDS_A_TASK, 5, RECORDS_A_TASK * 3, 1]
    parts = {Partition("t", number): Part(start=7, end=7 + size) for number, size in enumerate(sizes)}
    assert [[partition.number for partition in share] for share in shares(parts)] == [[0, 2], [3, 4], [5]]


def test_a_stream_that_ended_before_an_epoch_was_noted_and_is_started_again_gives_the_rows_of_a_batch(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = "traffic-streamed"
    create_topic(kafka.address, topic, PARTITIONS)
    records = captures.records(2, 40)
    first = len(records) // 2
    # A batch ends every open connection and a stream waits for more, so the capture ends with records that expire all.
    ends = [(number, captures.ending([f"end-{number}"])) for number in range(PARTITIONS)]
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    settings = {"bootstrap.servers": kafka.address}
    rows = http_traffic(
        spark, kafka=settings, topic=topic, expireAfter=EXPIRY, streaming=True, maxRowsPerEpoch=len(records) // 3
    )
    writer = rows.writeStream.format("parquet").option("path", str(out)).option("checkpointLocation", str(checkpoint))
    write(kafka.address, topic, records[:first])
    assert writer.trigger(availableNow=True).start().awaitTermination(int(TIMEOUT))
    before = spark.read.parquet(str(out)).count()
    # As `kill -9` leaves it behind the last epoch, whose state is kept and whose rows are in files by then.
    last = max(int(done.name) for done in (checkpoint / "commits").glob("[0-9]*"))
    for note in (checkpoint / "commits", out / "_spark_metadata"):
        for file in (note / f"{last}", note / f".{last}.crc"):
            file.unlink()
    assert spark.read.parquet(str(out)).count() < before
    write(kafka.address, topic, records[first:])
    for number, end in ends:
        write(kafka.address, topic, end, partition=number)
    assert writer.trigger(availableNow=True).start().awaitTermination(int(TIMEOUT))
    streamed = spark.read.parquet(str(out)).orderBy("id").collect()
    assert streamed == traffic(spark, kafka, topic, expireAfter=EXPIRY).orderBy("id").collect()
    assert 0 < before < len(streamed)
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) > 2


STREAM = """
import sys
from strandline.spark import http_traffic, session
from tests.spark.jvm import QUICK

address, topic, expiry, out, checkpoint = sys.argv[1:]
options = {**QUICK, "spark.sql.shuffle.partitions": "2"}
spark = session("traffic", master="local[2]", options=options)
kafka = {"bootstrap.servers": address}
rows = http_traffic(spark, kafka=kafka, topic=topic, expireAfter=expiry, streaming=True, maxRowsPerEpoch=150)
query = rows.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.mark.timeout(25 * TIMEOUT)
@pytest.mark.soak
def test_a_stream_that_is_killed_anywhere_and_started_again_is_the_batch(
    spark: SparkSession, kafka: KafkaCluster, mixed: str, tmp_path: Path
) -> None:
    # What is unfinished at the end a batch tells and a stream keeps: behind this all connections are gone.
    for number in range(PARTITIONS):
        write(kafka.address, mixed, captures.ending([f"end-{number}"]), partition=number)
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    command = [sys.executable, "-c", STREAM, kafka.address, mixed, EXPIRY, str(out), str(checkpoint)]
    for log, count in (("offsets", 1), ("commits", random.randrange(1, 4))):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            wait_for(partial(has_done, checkpoint / log, count), "some epochs are done", 6 * TIMEOUT)
        finally:
            kill_tree(process)
    subprocess.run(command, capture_output=True, timeout=8 * TIMEOUT, check=True)
    streamed = spark.read.parquet(str(out)).orderBy("id").collect()
    assert streamed == traffic(spark, kafka, mixed, expireAfter=EXPIRY).orderBy("id").collect()
    assert len(streamed) > 200
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) > 4


def test_a_stream_refuses_what_it_does_not_know(spark: SparkSession, kafka: KafkaCluster) -> None:
    settings = {"bootstrap.servers": kafka.address}
    with pytest.raises(OptionError, match="option 'end' is for a batch"):
        http_traffic(spark, kafka=settings, topic="t", end="now", streaming=True)
    with pytest.raises(OptionError, match="option 'stateBites' is unknown; did you mean 'stateBytes'"):
        http_traffic(spark, kafka=settings, topic="t", stateBites=5, streaming=True)
