"""Reads a whole topic with one of the peers, in a process of its own, and prints what that took as a line of JSON.

`python -m bench.ordered_reader PEER ADDRESS TOPIC ROWS BATCH_SIZE LIMIT_S`
"""

import json
import sys
import time
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", np.int32, np.int64)
Stamps = tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]
"""Partition and timestamp of every row of a batch: all that is kept of it."""

TUNED = {"fetch.queue.backoff.ms": "10"}
"""For the peers on librdkafka.

As it comes, it lets a partition of which it has 100,000 rows rest for a second, however fast they are taken: on small
rows it then sleeps for most of the time. With 0 ms it spins, and is slower than with 10.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reader has done."""

    peer: str
    batch_size: int
    """How many rows it was asked to give at a time; 0 where that is its own choice."""
    rows: int
    seconds: float
    """From the first call, the making of the consumer included, to the last row."""
    first_batch_s: float
    inversions: int
    peak_mb: float
    """The most memory that the process ever had, its libraries included."""
    growth_mb: float
    """What of it came while reading."""
    cpu_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


def ours(settings: dict[str, str], topic: str) -> Iterator[Stamps]:
    from strandline.ordered import (
        Earliest,
        OrderedConsumer,
        Topic,
    )

    yield _nothing()
    with OrderedConsumer(settings, [Topic(topic, Earliest())]) as consumer:
        for batch in consumer.until_live():
            yield _stamps(batch)


def confluent(settings: dict[str, str], topic: str, rows: int, batch_size: int) -> Iterator[Stamps]:
    from confluent_kafka import Consumer, TopicPartition

    yield _nothing()
    consumer = Consumer({**settings, "group.id": "bench", "enable.auto.commit": False})
    count = len(consumer.list_topics(topic).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
    left = rows
    while left:
        partitions, times = array("i"), array("q")
        # Never more than there is: it would wait for the rest until its time is out.
        messages: list[Any] = consumer.consume(min(batch_size, left), timeout=1.0)
        for message in messages:
            if message.error():
                raise AssertionError(message.error())
            message.topic()
            message.offset()
            message.key()
            message.value()
            partitions.append(message.partition())
            times.append(message.timestamp()[1])
        left -= len(times)
        yield np.array(partitions, np.int32), np.array(times, np.int64)
    consumer.close()


def kafkars(settings: dict[str, str], topic: str, rows: int, batch_size: int) -> Iterator[Stamps]:
    from kafkars import ConsumerManager, SourceTopic

    yield _nothing()
    topics = [SourceTopic.from_earliest(topic)]
    manager = ConsumerManager({**settings, "group.id": "bench"}, topics, batch_size=batch_size)
    left = rows
    while left:
        batch = manager.poll(timeout_ms=100)
        if not batch.num_rows and manager.is_live():
            return
        left -= batch.num_rows
        yield _stamps(batch)


def _nothing() -> Stamps:
    """Yielded by a reader when its libraries are loaded, and before its first call."""
    return np.empty(0, np.int32), np.empty(0, np.int64)


def _stamps(batch: Any) -> Stamps:
    return _values(batch.column("partition"), np.int32), _values(batch.column("timestamp"), np.int64)


def _values(column: Any, type_: type[Number]) -> npt.NDArray[Number]:
    """The numbers of a column without nulls.

    Copied, as a column that came from another library's memory keeps the whole of its batch alive. And not by way of
    `to_numpy`, which imports pandas the first time: half a second that no reader has to answer for.
    """
    values = np.frombuffer(column.buffers()[1], type_)
    return values[column.offset : column.offset + len(column)].copy()


def inversions(partitions: npt.NDArray[np.int32], times: npt.NDArray[np.int64]) -> int:
    """How many rows came after one that is later than they.

    A row is as late as the latest of its partition so far: within a partition the order of the offsets stands.
    """
    effective = times.copy()
    for partition in np.unique(partitions):
        mine = partitions == partition
        effective[mine] = np.maximum.accumulate(times[mine])
    return int(np.count_nonzero(effective < np.maximum.accumulate(effective)))


def peak_mb() -> float:
    """The most memory that this process has had so far."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def read(peer: str, address: str, topic: str, *, rows: int, batch_size: int, limit_s: float) -> Reading:
    """Read until the reader ends by itself or the time is out."""
    plain = {"bootstrap.servers": address}
    readers = {
        "ours": lambda: ours(plain, topic),
        "confluent": lambda: confluent(plain, topic, rows, batch_size),
        "confluent_tuned": lambda: confluent(plain | TUNED, topic, rows, batch_size),
        "kafkars": lambda: kafkars(plain, topic, rows, batch_size),
        "kafkars_tuned": lambda: kafkars(plain | TUNED, topic, rows, batch_size),
    }
    batches = readers[peer]()
    noted = [next(batches)]
    loaded_mb, cpu = peak_mb(), time.process_time()
    first = last = 0.0
    begin = time.perf_counter()
    for stamps in batches:
        elapsed = time.perf_counter() - begin
        if len(stamps[0]):
            noted.append(stamps)
            first, last = first or elapsed, elapsed
        if elapsed > limit_s:
            last = elapsed
            break
    cpu, peak = time.process_time() - cpu, peak_mb()
    partitions, times = (np.concatenate(column) for column in zip(*noted, strict=True))
    return Reading(
        peer=peer,
        batch_size=batch_size,
        rows=len(times),
        seconds=last,
        first_batch_s=first,
        inversions=inversions(partitions, times),
        peak_mb=peak,
        growth_mb=peak - loaded_mb,
        cpu_s=cpu,
    )


if __name__ == "__main__":
    peer, address, topic, rows, batch_size, limit_s = sys.argv[1:]
    reading = read(peer, address, topic, rows=int(rows), batch_size=int(batch_size), limit_s=float(limit_s))
    print(json.dumps(asdict(reading)))
