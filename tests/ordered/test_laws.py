"""The laws of order on a real broker: in order, exactly once, whatever lies in the log and however it is read."""

import asyncio
import random
import threading
import time
import weakref
from concurrent.futures.thread import _WorkItem
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from strandline.clock import SystemClock
from strandline.core.ordering import Ordering
from strandline.errors import CorruptBatch
from strandline.kafka.cluster import Cluster, Fetched, Isolation
from strandline.kafka.partition import Partition
from strandline.ordered import OrderedConsumer, Topic, reading
from strandline.ordered.merge import Merge, Part
from strandline.ordered.reading import Rules
from strandline.stack import KafkaCluster
from strandline.wire import fetched, records
from strandline.wire.batches import Batch
from strandline.wire.codecs import Bytes
from strandline.wire.fetched import Scanned
from strandline.wire.records import Columns
from tests.ordered.support import (
    OPEN_FOR_LONG,
    create_topic,
    inversions,
    offsets,
    produce,
    produce_batch,
    rows_of,
    stable_end,
)
from tests.support import TIMEOUT, wait_for
from tests.wire.encoder import Record, batch

DAY = 1_767_225_600_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_of_all_partitions_come_once_and_in_order(kafka: KafkaCluster, codec: str) -> None:
    """Jitter, 90 % of all rows in one partition, one empty partition, and many rows of one time."""
    chance = random.Random(codec)
    topic = f"laws-{codec}"
    create_topic(kafka.address, topic, 5)
    written = []
    for number in range(20_000):
        partition = 0 if chance.random() < 0.9 else chance.randrange(1, 4)
        stamp = DAY + (5_000 if 5_000 <= number < 9_000 else number) + chance.randrange(-50, 50)
        written.append((partition, stamp, f"{number} {'x' * chance.randrange(80)}".encode()))
    produce(kafka.address, topic, written, **{"compression.type": codec})
    runs = []
    for batch_rows, buffer_bytes in ((100_000, 256 << 20), (777, 1 << 20)):
        with OrderedConsumer(
            kafka.settings(), [Topic(topic)], batch_rows=batch_rows, buffer_bytes=buffer_bytes
        ) as consumer:
            batches = list(consumer.until_live())
            assert consumer.is_live
            assert consumer.losses == ()
        assert all(0 < found.num_rows <= batch_rows for found in batches)
        runs.append(rows_of(batches))
    rows = runs[0]
    assert inversions(rows) == 0
    for partition in range(4):
        sent = [value for number, _, value in written if number == partition]
        assert [row.value for row in rows if row.partition == partition] == sent
        assert offsets(rows)[partition] == list(range(len(sent)))
    assert runs[1] == rows, "how it is read changes the order"


def test_what_was_aborted_is_not_read_and_an_open_transaction_is_no_reason_to_wait(kafka: KafkaCluster) -> None:
    topic = "laws-transactions"
    create_topic(kafka.address, topic, 2)
    producers = []
    for name in ("commits", "aborts", "stays-open"):
        how = {"transactional.id": f"laws-{name}", "linger.ms": 0, **OPEN_FOR_LONG}
        producer = Producer({"bootstrap.servers": kafka.address, **how})
        producer.init_transactions(TIMEOUT)
        producers.append(producer)
    commits, aborts, stays_open = producers
    expected = []
    for round_ in range(6):
        for producer in (commits, aborts):
            producer.begin_transaction()
            for number in range(20):
                producer.produce(topic, f"{round_} {number}".encode(), partition=number % 2, timestamp=DAY + round_)
            assert producer.flush(TIMEOUT) == 0
        expected += [f"{round_} {number}".encode() for number in (*range(0, 20, 2), *range(1, 20, 2))]
        aborts.abort_transaction(TIMEOUT)
        commits.commit_transaction(TIMEOUT)
    # In each partition 6 rounds of 2 transactions of 10 records and a marker. A marker is written after its producer
    # was told, and might else lie behind the record of the open transaction: the stable end stays before that record.
    ends = 6 * 2 * 11
    wait_for(lambda: [stable_end(kafka.address, topic, p) for p in range(2)] == [ends] * 2, "the markers are written")
    stays_open.begin_transaction()
    stays_open.produce(topic, b"open", partition=1, timestamp=DAY + 99)
    assert stays_open.flush(TIMEOUT) == 0
    produce(kafka.address, topic, [(1, DAY + 100, b"behind the open one"), (0, DAY + 100, b"last")])
    assert [stable_end(kafka.address, topic, p) for p in range(2)] == [ends + 1, ends]
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        committed = rows_of(consumer.until_live())
    assert [row.value for row in committed] == [*expected, b"last"]
    assert inversions(committed) == 0
    with OrderedConsumer(kafka.settings(), [Topic(topic)], isolation="read_uncommitted") as consumer:
        everything = rows_of(consumer.until_live())
    assert len(everything) == 2 * len(expected) + 3
    assert inversions(everything) == 0
    stays_open.commit_transaction(TIMEOUT)
    wait_for(lambda: stable_end(kafka.address, topic, 1) == ends + 3, "the last marker is written")
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        values = [row.value for row in rows_of(consumer.until_live())]
    assert sorted(filter(None, values)) == sorted([*expected, b"last", b"open", b"behind the open one"])


def test_a_log_that_ends_in_a_marker_becomes_live(kafka: KafkaCluster) -> None:
    topic = "laws-marker"
    create_topic(kafka.address, topic)
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": "laws-marker"})
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"never", timestamp=DAY)
    assert producer.flush(TIMEOUT) == 0
    producer.abort_transaction(TIMEOUT)
    wait_for(lambda: stable_end(kafka.address, topic, 0) == 2, "the marker is written")
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        assert list(consumer.until_live()) == []
        assert consumer.partitions().to_pylist()[0] | {"held_rows": 0} == {
            "topic": topic,
            "partition": 0,
            "start": 0,
            "end": 2,
            "position": 2,
            "timestamp": None,
            "state": "live",
            "held_rows": 0,
            "held_bytes": 0,
            "paused": False,
        }


def test_gaps_that_compaction_leaves_are_passed(kafka: KafkaCluster) -> None:
    topic = "laws-compaction"
    create_topic(
        kafka.address,
        topic,
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.001",
        max_compaction_lag_ms="1",
    )
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 5, "batch.num.messages": 100})
    for number in range(40_000):
        # One key for a long while, so that whole batches go; then every record has its own.
        key = number % 10 if number < 10_000 else 1 if number < 30_000 else number
        producer.produce(topic, b"x" * 50, f"key-{key}", timestamp=DAY + number)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0

    def kept() -> list[int]:
        peer = Consumer({"bootstrap.servers": kafka.address, "group.id": "laws", "enable.partition.eof": True})
        peer.assign([TopicPartition(topic, 0, 0)])
        found: list[int] = []
        while True:
            for message in peer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message.offset() or 0)
                elif error.code() == KafkaError._PARTITION_EOF:
                    peer.close()
                    return found

    wait_for(lambda: len(kept()) < 30_000, "the log is compacted")
    # The cleaner may go on in between, and only takes away.
    before = kept()
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        read = offsets(rows_of(consumer.until_live()))[0]
    after = kept()
    assert set(after) <= set(read) <= set(before)
    assert read == sorted(set(read))
    # A range that ends within a hole: nothing is there up to its end, and that is known.
    hole = max(range(len(after) - 1), key=lambda n: after[n + 1] - after[n])
    assert after[hole + 1] - after[hole] > 100
    start, end = after[hole] + 10, after[hole + 1] - 10
    assert asyncio.run(read_range(kafka.address, Partition(topic, 0), start, end)) == []
    found = asyncio.run(read_range(kafka.address, Partition(topic, 0), 0, end))
    assert {n for n in kept() if n < end} <= set(found) <= {n for n in after if n < end}
    assert found == sorted(set(found))


async def read_range(address: str, partition: Partition, start: int, end: int) -> list[int]:
    cluster = Cluster({"bootstrap.servers": address})
    await cluster.partitions([partition.topic])
    rules = Rules(Isolation.READ_COMMITTED, skip_corrupt=False, skip_missing=False)
    parts = {partition: Part(start=start, end=end)}
    merge = Merge(cluster, parts, rules, SystemClock(), ceiling=2 * DAY, buffer_bytes=1 << 20)
    try:
        found = []
        async with asyncio.timeout(TIMEOUT):
            while not merge.is_drained:
                found += [row.offset for row in rows_of([await merge.poll(1000, TIMEOUT)])]
        return found
    finally:
        await merge.close()
        cluster.close()


def test_records_stamped_by_the_broker_have_the_time_of_their_batch(kafka: KafkaCluster) -> None:
    topic = "laws-append-time"
    create_topic(kafka.address, topic, 2, message_timestamp_type="LogAppendTime")
    produce(kafka.address, topic, [(number % 2, DAY - number, b"x") for number in range(2000)])
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        rows = rows_of(consumer.until_live())
    assert len(rows) == 2000
    assert all(row.timestamp is not None and row.timestamp > DAY for row in rows)
    assert inversions(rows) == 0


def test_a_record_without_a_time_has_none_and_belongs_to_the_time_before_it(kafka: KafkaCluster) -> None:
    topic = "laws-no-time"
    create_topic(kafka.address, topic, 2)
    times = [DAY, -1, DAY + 5]
    written = [Record(number, stamp, None, b"x") for number, stamp in enumerate(times)]
    produce_batch(kafka.address, topic, 0, batch(written, base_offset=0))
    produce(kafka.address, topic, [(1, DAY + 2, b"between")])
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        rows = rows_of(consumer.until_live())
    assert [(row.partition, row.timestamp) for row in rows] == [(0, DAY), (0, None), (1, DAY + 2), (0, DAY + 5)]


def test_a_date_far_ahead_stalls_nobody(kafka: KafkaCluster) -> None:
    topic = "laws-far-ahead"
    create_topic(kafka.address, topic, 2, message_timestamp_after_max_ms=str(2**62))
    far = 32_503_680_000_000
    produce(kafka.address, topic, [(0, DAY, b"a"), (0, far, b"stray"), (0, DAY + 4, b"c")])
    produce(kafka.address, topic, [(1, DAY + 2, b"b"), (1, DAY + 6, b"d")])
    with OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer:
        values = [row.value for row in rows_of(consumer.until_live())]
    assert values == [b"a", b"stray", b"b", b"c", b"d"]


class Memory:
    """What a reader keeps: rows, answers that are not unpacked yet, and what is being unpacked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packed = self.unpacking = 0
        self.ordering: Ordering[Partition] | None = None
        self.most_rows = self.most_packed = self.most = self.largest_answer = 0
        feed, scan_fetched, columns_within = Ordering.feed, reading.scan_fetched, records.columns_within
        fetch, run = Cluster.fetch, _WorkItem.run

        def feeding(ordering: Ordering[Partition], *args: Any) -> None:
            feed(ordering, *args)
            self.unpacking, self.ordering = 0, ordering
            self.most_rows = max(self.most_rows, ordering.held_bytes)
            self.note()

        def scanning(*args: Any) -> Scanned:
            scanned = scan_fetched(*args)
            self.packed += scanned.data.nbytes
            self.most_packed = max(self.most_packed, self.packed)
            weakref.finalize(scanned.data, self.free, scanned.data.nbytes)
            self.note()
            return scanned

        def unpacking(data: Bytes, chosen: list[Batch], most: int) -> tuple[Columns, int]:
            found, taken = columns_within(data, chosen, most)
            self.unpacking = found.nbytes
            self.note()
            return found, taken

        async def fetching(*args: Any, **kwargs: Any) -> list[Fetched]:
            answers = await fetch(*args, **kwargs)
            self.largest_answer = max(self.largest_answer, sum(len(answer.records) for answer in answers))
            return answers

        def lingering(item: _WorkItem[Any]) -> None:
            """A thread has its arguments for as long as it likes after it has answered."""
            run(item)
            time.sleep(0.05)

        monkeypatch.setattr(_WorkItem, "run", lingering)
        monkeypatch.setattr(Ordering, "feed", feeding)
        monkeypatch.setattr(reading, "scan_fetched", scanning)
        monkeypatch.setattr(fetched, "columns_within", unpacking)
        monkeypatch.setattr(Cluster, "fetch", fetching)

    def free(self, bytes_: int) -> None:
        self.packed -= bytes_

    def note(self) -> None:
        rows = 0 if self.ordering is None else self.ordering.held_bytes
        self.most = max(self.most, rows + self.packed + self.unpacking)


def test_records_of_ten_megabytes_are_read_with_the_smallest_buffer_one_at_a_time(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "laws-large"
    create_topic(kafka.address, topic, 3, max_message_bytes="12000000")
    size = 10_000_000
    large = random.Random(1).randbytes(size)
    written = [(p, DAY + n, large if n == 5 else b"small") for n in range(10) for p in range(3)]
    produce(kafka.address, topic, written, **{"message.max.bytes": 12_000_000})
    memory = Memory(monkeypatch)
    with OrderedConsumer(kafka.settings(), [Topic(topic)], buffer_bytes=1 << 20) as consumer:
        rows = rows_of(consumer.until_live())
    assert [(row.partition, row.timestamp, len(row.value or b"")) for row in rows] == [
        (p, DAY + n, size if n == 5 else 5) for n in range(10) for p in range(3)
    ]
    assert memory.most_rows <= (1 << 20) + size + 1000


@pytest.mark.parametrize("bound", [1 << 20, 6 << 20])
def test_the_buffer_keeps_its_bound_also_when_records_suddenly_grow_a_hundredfold(
    pair: KafkaCluster, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve partitions of two brokers, one of them far ahead; from a time on records shrink to nothing when packed."""
    topic = f"laws-bound-{bound}"
    create_topic(pair.address, topic, 12)
    chance = random.Random(5)
    count, partitions, rows_a_batch, row_bytes = 12_000, 12, 100, 1000
    written = []
    for number in range(count):
        value = chance.randbytes(row_bytes) if number < count / 3 else b"x" * row_bytes
        partition = number % partitions
        written.append((partition, DAY + (count if partition == 0 else number), value))
    settings: dict[str, str | int] = {"compression.type": "zstd", "batch.num.messages": rows_a_batch}
    produce(pair.address, topic, written, **settings)
    memory = Memory(monkeypatch)
    with OrderedConsumer(pair.settings(), [Topic(topic)], buffer_bytes=bound, batch_rows=5000) as consumer:
        rows = rows_of(consumer.until_live())
    assert len(rows) == count
    assert inversions(rows) == 0
    batch_bytes = rows_a_batch * (row_bytes + 100)
    assert memory.most_rows <= bound
    # One answer comes beyond it, and is there twice while a batch of it is unpacked.
    assert memory.most <= bound + memory.largest_answer + batch_bytes
    assert memory.largest_answer <= max(bound // 8, batch_bytes)


@pytest.mark.parametrize("phase", ["at_the_start", "once_live"])
def test_of_answers_larger_than_was_asked_for_one_comes_beyond_the_buffer_also_with_several_leaders(
    pair: KafkaCluster, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"laws-leaders-{phase}"
    create_topic(pair.address, topic, 4, max_message_bytes="12000000")
    size, bound = 10_000_000, 8 << 20
    large = random.Random(2).randbytes(size)
    written = [(partition, DAY + number, large) for number in range(2) for partition in range(4)]

    def write() -> None:
        produce(pair.address, topic, written, **{"message.max.bytes": 12_000_000, "linger.ms": 0})

    memory = Memory(monkeypatch)
    if phase == "at_the_start":
        write()
    with OrderedConsumer(pair.settings(), [Topic(topic)], buffer_bytes=bound) as consumer:
        rows = rows_of(consumer.until_live())
        if phase == "once_live":
            writer = threading.Thread(target=write)
            writer.start()
            deadline = time.monotonic() + TIMEOUT
            while len(rows) < len(written) and time.monotonic() < deadline:
                rows += rows_of([consumer.poll(1.0)])
            writer.join()
    assert sorted((row.partition, row.offset) for row in rows) == [(p, n) for p in range(4) for n in range(2)]
    assert memory.most_packed <= max(bound, memory.largest_answer)
    assert memory.most_rows <= bound + size + 1000


def test_a_damaged_batch_is_named_or_passed_over(kafka: KafkaCluster) -> None:
    topic = "laws-damaged"
    create_topic(kafka.address, topic)
    for first in range(0, 30, 10):
        written = [Record(n, DAY + first + n, None, f"value-{first + n}".encode()) for n in range(10)]
        produce_batch(kafka.address, topic, 0, batch(written, base_offset=0))
    (segment,) = Path(kafka.directory, "broker-1", f"{topic}-0").glob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[stored.index(b"value-15")] ^= 1
    segment.write_bytes(stored)
    with (
        OrderedConsumer(kafka.settings(), [Topic(topic)]) as consumer,
        pytest.raises(CorruptBatch, match=f"the record batch at offset 10 of {topic}/0: its checksum differs"),
    ):
        list(consumer.until_live())
    with OrderedConsumer(kafka.settings(), [Topic(topic)], on_corrupt="skip") as consumer:
        rows = rows_of(consumer.until_live())
        assert [str(loss) for loss in consumer.losses] == [
            f"offsets 10 to 19 of {topic}/0 are lost: the batch is corrupt: its checksum differs"
        ]
    assert offsets(rows) == {0: [*range(10), *range(20, 30)]}
