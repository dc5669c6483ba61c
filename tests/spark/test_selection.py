"""A selection that is replayed: each request once, in the order of its connection, named, with its result."""

import asyncio
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from strandline.core.murmur import share_of, spark_hash
from strandline.errors import OptionError, TargetError
from strandline.replay.results import Result
from strandline.replay.selection import METHOD, NAME, QUERY, VALUE
from strandline.spark import http_traffic, replay
from strandline.spark.replay_sink import HttpReplay
from strandline.spark.selection import matches
from strandline.stack import KafkaCluster
from tests.replay.support import Said, Server, capture, connection, get, post, serving
from tests.support import TIMEOUT

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[Server]:
    """A target on a loop of its own."""
    ready, over = threading.Event(), asyncio.Event()
    found: list[Server] = []
    loop = asyncio.new_event_loop()

    async def main() -> None:
        async with serving() as server:
            found.append(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(TIMEOUT)
    yield found[0]
    loop.call_soon_threadsafe(over.set)
    thread.join(TIMEOUT)
    loop.close()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.port}"


def test_a_selection_of_captured_traffic_is_sent_in_order_with_its_names_and_its_results(
    spark: SparkSession, kafka: KafkaCluster, server: Server, tmp_path: Path
) -> None:
    topic = "selection-captured"
    said = [Said(20 * n, post(f"/old/{n}?a=b", b"x" * n) if n % 2 else get(f"/old/{n}")) for n in range(8)]
    capture(kafka.address, topic, {f"c{n}": connection(f"c{n}", said, close_at=300) for n in range(6)}, 3)
    traffic = http_traffic(spark, kafka={"bootstrap.servers": kafka.address}, topic=topic)
    chosen = traffic.where("request.method = 'POST' AND connection <> 'c0'").withColumn(
        "path", F.regexp_replace("request.path", "^/old", "/new")
    )
    found = replay(chosen, target=url(server), speedup=2, results=tmp_path / "results", head_start=1)
    rows = found.collect()
    assert set(found.columns) == {field.name for field in msgspec.structs.fields(Result)}
    assert all(row["source_end_us"] >= row["source_time_us"] for row in rows)
    captured = {row["id"] for row in chosen.select("id").collect()}
    assert {arrival.mark for arrival in server.arrivals} == captured == {row["id"] for row in rows}
    assert len(server.arrivals) == len(captured) == len(rows) == 20
    assert {(row["verdict"], row["same_body"], row["attempt_count"]) for row in rows} == {("match", True, 1)}
    assert {row["target_request"]["target"] for row in rows} == {f"/new/{n}?a=b" for n in (1, 3, 5, 7)}
    by_connection: dict[int, list[str]] = {}
    for arrival in server.arrivals:
        by_connection.setdefault(arrival.connection, []).append(arrival.path)
    assert list(by_connection.values()) == [[f"/new/{n}?a=b" for n in (1, 3, 5, 7)]] * 5
    for row in rows:
        # One reference for all: what was captured together is due together, at twice the speed.
        assert row["due_us"] - min(other["due_us"] for other in rows) == pytest.approx(
            (row["source_time_us"] - min(other["source_time_us"] for other in rows)) / 2, abs=20_000
        )
    with pytest.raises(OptionError, match="is there already"):
        replay(chosen, target=url(server), results=tmp_path / "results")


def test_requests_that_are_made_up_are_sent_and_wrong_ones_are_refused_before_any_is(
    spark: SparkSession, server: Server
) -> None:
    columns = "connection string, time timestamp, method string, path string, headers map<string,string>, body binary"
    made = [
        (f"c{n % 3}", DAY + timedelta(milliseconds=n), "PUT", f"/{n}", {"x-number": str(n)}, bytearray(b"body"))
        for n in range(9)
    ]
    frame = spark.createDataFrame(made, columns)
    with pytest.raises(OptionError, match="99 workers, and Spark has 2 slots"):
        replay(frame, target=url(server), workers=99)
    with pytest.raises(OptionError, match="no column 'path'"):
        replay(frame.drop("path"), target=url(server))
    with pytest.raises(OptionError, match="9 rows have no connection or no time"):
        replay(frame.withColumn("time", F.lit(None).cast("timestamp")), target=url(server))
    with pytest.raises(OptionError, match="9 requests are not whole"):
        replay(frame.withColumn("completeness", F.lit("request_incomplete")), target=url(server))
    with pytest.raises(OptionError, match="1 request cannot be sent, of connection 'c2': a method, a path"):
        smuggled = F.when(F.col("path") == "/5", "/x\r\nEvil: 1").otherwise(F.col("path"))
        replay(frame.withColumn("path", smuggled), target=url(server))
    with pytest.raises(OptionError, match="9 requests cannot be sent, the first of connection 'c0': a header"):
        replay(frame.withColumn("headers", F.create_map(F.lit("a"), F.lit(None).cast("string"))), target=url(server))
    with pytest.raises(OptionError, match="column 'offset' is string: partition, offset, ordinal are whole numbers"):
        replay(frame.withColumn("offset", F.lit("x")), target=url(server))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"head_start": "x"}, "head_start takes seconds"),
        ({"down_for": float("nan")}, "down_for takes seconds"),
        ({"when_down": "stop"}, "when_down takes no 'stop'"),
        ({"workers": "2"}, "workers takes a value of type int"),
        ({"results": 5}, "results takes the path"),
        ({"results": "/proc/nowhere"}, "results: /proc/nowhere cannot be made"),
    ]
    for options, line in wrong:
        with pytest.raises(OptionError, match=line):
            replay(frame, target=url(server), **options)
    with pytest.raises(OptionError, match="the selection takes a value of type DataFrame"):
        replay([1], target=url(server))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="kafka takes settings by name"):
        http_traffic(spark, kafka="127.0.0.1:9092")  # type: ignore[arg-type]
    assert not server.arrivals
    results = replay(frame, target=url(server), speedup="max", head_start=1).collect()
    assert sorted(arrival.path for arrival in server.arrivals) == [f"/{n}" for n in range(9)]
    assert all(arrival.content.endswith(b"\r\n\r\nbody") for arrival in server.arrivals)
    assert all(arrival.header("x-number") == arrival.path[1:] for arrival in server.arrivals)
    assert sorted(row["id"] for row in results) == sorted(arrival.mark for arrival in server.arrivals)
    assert {row["verdict"] for row in results} == {"no_source"}


def test_a_target_that_stays_down_ends_it_with_one_line_and_leaves_no_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = [("c", DAY, "GET", "/"), ("d", DAY, "GET", "/")]
    frame = spark.createDataFrame(made, "connection string, time timestamp, method string, path string")
    with pytest.raises(TargetError, match=r"^http://127\.0\.0\.1:1 could not be reached for 0\.2 s .*no results$"):
        replay(frame, target="http://127.0.0.1:1", results=tmp_path / "results", head_start=0, down_for=0.2)
    assert not (tmp_path / "results").exists()


def test_what_spark_finds_unfit_to_be_sent_is_what_a_task_would_refuse(spark: SparkSession) -> None:
    texts = ["", "x\n", "\u2028", "\U0001f600", *(f"{chr(sign)}x" for sign in range(0x120)), "x\r", "x "]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    patterns = [METHOD, QUERY, NAME, VALUE]
    found = frame.select("text", *(matches(F.col("text"), pattern) for pattern in patterns)).collect()
    assert [tuple(row) for row in found] == [
        (text, *(re.fullmatch(pattern, text) is not None for pattern in patterns)) for text in texts
    ]


def test_the_bare_sink_refuses_what_is_not_prepared_and_names_who_prepares_it(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    spark.dataSource.register(HttpReplay)
    made = spark.createDataFrame([("c", DAY)], "connection string, time timestamp")
    with pytest.raises(PySparkException, match=r"option 'target' .* strandline\.spark\.replay"):
        made.write.format("http_replay").mode("append").save()
    options = {"target": url(server), "speed": "1", "reference": "0", "begin": "0", "partitions": "2"}
    options |= {"whenDown": "pause", "downFor": "60"}
    writer = made.write.format("http_replay").mode("append").options(**options, results=str(tmp_path))
    with pytest.raises(PySparkException, match=r"no column 'node'; strandline\.spark\.replay"):
        writer.save()


def test_the_hash_is_that_of_spark(spark: SparkSession) -> None:
    texts = ["", "a", "ab", "abc", "abcd", "connection-17", "ü", "日本語 text", "x" * 99]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    found = frame.selectExpr("text", "hash(text) AS hash", "pmod(hash(text), 7) AS share").collect()
    assert [(row["text"], spark_hash(row["text"]), share_of(row["text"], 7)) for row in found] == [
        (row["text"], row["hash"], row["share"]) for row in found
    ]
