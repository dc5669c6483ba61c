"""Captured traffic as a table on Spark: transactions a second from a real Kafka, in a batch and as a stream.

A small shop: a dozen endpoints, some slow, some that fail, over many connections. The batch is also written as Parquet
and asked in plain SQL, which is what docs/traffic.md shows.

`python -m bench.traffic`, with `--quick` for a smoke run.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession
from tests.topics import create_topics

from bench.amounts import parse
from bench.figures import Figure, report
from bench.ordered import progress
from strandline.spark import http_traffic, session
from strandline.stack import Stack
from strandline.units import Nanos
from strandline.wire.traffic import Recording

CORES = 2
PARTITIONS = 4
CONNECTIONS = 500
BEGIN = 1_780_000_000_000_000_000
RATE = 2_000
"""Requests a second at the source."""
TOPIC = "traffic"


@dataclass(frozen=True)
class Amounts:
    """How much is read, and in how many epochs as a stream: 2 or more, as the first does not count."""

    transactions: int = 1_000_000
    epochs: int = 5


QUICK = Amounts(transactions=4_000, epochs=2)

# The endpoint, its share of all requests, its usual time in milliseconds, how many of a thousand fail.
ENDPOINTS = [
    ("GET /api/items/%d", 40, 4, 1),
    ("GET /api/search?q=thing%d", 20, 25, 2),
    ("GET /api/carts/%d", 12, 6, 1),
    ("POST /api/carts/%d/items", 10, 9, 4),
    ("GET /api/users/%d", 8, 5, 0),
    ("POST /api/orders?user=%d", 5, 60, 25),
    ("GET /static/app.js?v=%d", 4, 1, 0),
    ("GET /api/reports/%d", 1, 700, 80),
]

QUERIES = {
    "top endpoints": r"""
        SELECT request.method, regexp_replace(request.path, '[0-9]+', '{n}') AS endpoint,
               count(*) AS requests, round(sum(request.bytes + response.bytes) / 1e6, 1) AS mb
        FROM traffic GROUP BY ALL ORDER BY requests DESC LIMIT 5
    """,
    "error rates": r"""
        SELECT request.method, regexp_replace(request.path, '[0-9]+', '{n}') AS endpoint,
               count_if(status >= 500) AS errors, round(100 * avg(int(status >= 500)), 2) AS percent
        FROM traffic GROUP BY ALL HAVING errors > 0 ORDER BY percent DESC LIMIT 5
    """,
    "slowest": r"""
        SELECT regexp_replace(request.path, '[0-9]+', '{n}') AS endpoint, round(percentile(duration_ms, 0.5), 1) AS p50,
               round(percentile(duration_ms, 0.99), 1) AS p99, round(max(duration_ms), 1) AS max_ms,
               max_by(id, duration_ms) AS slowest
        FROM traffic GROUP BY ALL ORDER BY p99 DESC LIMIT 5
    """,
}


def exchanges(count: int) -> Iterator[tuple[int, bytes, bytes, int]]:
    """The time, the request, the response and how long it took, in nanoseconds."""
    chance = np.random.default_rng(1)
    shares = np.array([share for _, share, _, _ in ENDPOINTS], dtype=float)
    kinds = chance.choice(len(ENDPOINTS), count, p=shares / shares.sum())
    numbers = chance.integers(1, 5_000, count)
    factors = chance.lognormal(0, 0.5, count)
    fails = chance.integers(0, 1000, count)
    times = np.cumsum(chance.exponential(1e9 / RATE, count)).astype(np.int64)
    for kind, number, factor, fail, at in zip(
        kinds.tolist(), numbers.tolist(), factors.tolist(), fails.tolist(), times.tolist(), strict=True
    ):
        line, _, usual, failing = ENDPOINTS[kind]
        sent = b'{"item": %d, "count": 1}' % number if line.startswith("POST") else b""
        status = "503 Unavailable" if fail < failing else "200 OK"
        body = b'{"id": %d, "name": "a thing of the shop", "price": %d, "tags": ["a", "b"]}' % (
            number,
            number * 7 % 990,
        )
        request = (
            f"{line % number} HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: bench/1.0\r\nAccept: application/json\r\n"
            f"Cookie: session={number:016x}\r\nContent-Length: {len(sent)}\r\n\r\n"
        ).encode() + sent
        answer = (
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nServer: shop\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        yield BEGIN + at, request, answer, int(usual * factor * 1e6)


def fill(address: str, count: int) -> None:
    """Capture that, a record for each exchange, connections in turn, all closed at the end."""
    create_topics({"bootstrap.servers": address}, NewTopic(TOPIC, PARTITIONS, config={"retention.ms": "-1"}))
    producer = Producer(
        {
            "bootstrap.servers": address,
            "linger.ms": 50,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 10**6,
        }
    )
    recordings = [Recording("bench", f"connection-{number}") for number in range(CONNECTIONS)]

    def put(recording: Recording, *, last: bool = False) -> None:
        for record in recording.take(last=last):
            while True:
                try:
                    producer.produce(TOPIC, record, recording.connection)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)

    at = BEGIN
    for number, (at, request, answer, took) in enumerate(exchanges(count)):
        recording = recordings[number % CONNECTIONS]
        recording.read(Nanos(at), request)
        recording.end_of_request(Nanos(at))
        recording.write(Nanos(at + took), answer)
        put(recording)
    for recording in recordings:
        recording.close(Nanos(at + 10**10))
        put(recording, last=True)
    if producer.flush(120):
        raise AssertionError("the capture could not be written")


def batch_seconds(frame: DataFrame) -> float:
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def stream_seconds(spark: SparkSession, address: str, rows: int) -> float:
    """How long a stream takes for all that is there, without the time of its first epoch, which starts things."""
    kafka = {"bootstrap.servers": address}
    frame = http_traffic(spark, kafka=kafka, topic=TOPIC, streaming=True, maxRowsPerEpoch=rows)
    with tempfile.TemporaryDirectory() as directory:
        writer = frame.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True)
        begin = time.perf_counter()
        query = writer.start()
        query.awaitTermination()
        took = time.perf_counter() - begin
        epochs = [told for told in query.recentProgress if told["numInputRows"]]
    first: float = epochs[0]["durationMs"]["triggerExecution"] / 1e3
    return took - first


def ask(spark: SparkSession, frame: DataFrame, directory: Path) -> None:
    """Print what docs/traffic.md shows."""
    begin = time.perf_counter()
    frame.write.parquet(str(directory / "traffic"))
    progress(f"written as Parquet in {time.perf_counter() - begin:.1f} s")
    spark.read.parquet(str(directory / "traffic")).createOrReplaceTempView("traffic")
    for name, query in QUERIES.items():
        begin = time.perf_counter()
        found = spark.sql(query)
        found.collect()
        progress(f"{name}: {time.perf_counter() - begin:.1f} s")
        found.show(truncate=False)


if __name__ == "__main__":
    chosen, is_quick = parse("bench.traffic", Amounts(), QUICK)
    with Stack(["kafka"]) as stack, tempfile.TemporaryDirectory() as scratch:
        address = stack.kafka[0].address
        fill(address, chosen.transactions)
        progress("filled")
        options = {"spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": str(CORES)}
        spark = session("bench", master=f"local[{CORES}]", options=options)
        spark.sparkContext.setLogLevel("ERROR")
        table = http_traffic(spark, kafka={"bootstrap.servers": address}, topic=TOPIC)
        table.limit(1).count()
        in_batch = batch_seconds(table)
        progress(f"batch: {in_batch:.1f} s")
        rows = max(1, chosen.transactions // chosen.epochs)
        in_stream = stream_seconds(spark, address, rows)
        progress(f"stream: {in_stream:.1f} s without the first epoch")
        ask(spark, table, Path(scratch))
        found = spark.table("traffic").where("completeness = 'complete'").count()
        spark.stop()
    if found != chosen.transactions:
        raise AssertionError(f"{found:,} of {chosen.transactions:,} transactions")
    report(
        f"{chosen.transactions:,} transactions on Spark, {CORES} cores (load {os.getloadavg()[0]:.1f})",
        [
            Figure(
                "traffic.batch_per_s", chosen.transactions / in_batch, "transactions a second in a batch, into noop"
            ),
            Figure(
                "traffic.stream_per_s",
                chosen.transactions * (1 - 1 / chosen.epochs) / in_stream,
                "the same as a stream, without its first epoch",
            ),
        ],
        is_quick=is_quick,
    )
