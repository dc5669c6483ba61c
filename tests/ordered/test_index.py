"""Headers are read about once, however many epochs ask; what is kept says the same as what is read anew."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from strandline.core.ordering import BEFORE_ALL_TIME
from strandline.kafka.cluster import Cluster, Fetched
from strandline.kafka.partition import Partition
from strandline.ordered.epochs import Limits, Position
from strandline.ordered.index import INDEX_BYTES, Indexes
from strandline.ordered.merge import Part
from strandline.stack import KafkaCluster
from tests.ordered.support import create_topic, produce
from tests.ordered.test_epochs import epochs_of, read_all
from tests.ordered.test_slices import CEILING, DAY, RULES
from tests.support import TIMEOUT

FAR = 32_503_680_000_000


@contextmanager
def bytes_for_indexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the answers that were read for their headers."""
    read = Cluster.read
    sizes: list[int] = []

    async def reading(*args: Any, max_bytes: int) -> Fetched:
        fetched = await read(*args, max_bytes=max_bytes)
        if max_bytes == INDEX_BYTES:
            sizes.append(len(fetched.records))
        return fetched

    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "read", reading)
        yield sizes


def test_each_header_is_read_about_once_however_many_epochs_the_unread_takes(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "index-epochs"
    create_topic(kafka.address, topic, 2, message_timestamp_after_max_ms=str(2**62))
    size, count = 1000, 1_500
    written = [(n % 2, DAY + n, bytes(size)) for n in range(count)]
    produce(kafka.address, topic, [(0, FAR, b"stray"), *written], **{"batch.num.messages": 20})
    with bytes_for_indexes(monkeypatch) as read:
        found, _ = asyncio.run(read_all(kafka.address, topic, Limits(rows=150), Position(offsets={})))
    assert len(found) >= count / 150
    assert sum(map(len, found)) == count + 1
    log = count / 2 * (size + 100)
    assert 0 < sum(read) <= 1.5 * log


def test_only_what_is_new_is_read_while_unread_rows_pile_up(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition far ahead waits for a slow one, epoch after epoch, and gets more all the time."""
    topic = "index-grows"
    create_topic(kafka.address, topic, 2, message_timestamp_after_max_ms=str(2**62))
    size, rounds, each = 1000, 12, 100
    produce(kafka.address, topic, [(0, FAR, b"stray")])

    async def run() -> Position:
        position = Position(offsets={})
        async with epochs_of(kafka.address, topic) as (_, epochs):
            for round_ in range(rounds):
                ahead = [(0, DAY + 1000 + round_, bytes(size)) for _ in range(each)]
                await asyncio.to_thread(produce, kafka.address, topic, [*ahead, (1, DAY + round_, b"slow")])
                position = await epochs.next(position, Limits(), CEILING)
        return position

    with bytes_for_indexes(monkeypatch) as read:
        position = asyncio.run(run())
    assert [position.offsets[Partition(topic, n)] for n in range(2)] == [1, rounds], "the stray and all slow rows"
    assert len(read) >= rounds
    assert sum(read) <= 1.5 * rounds * each * (size + 100)


@pytest.mark.parametrize("most_batches", [1_000_000, 8])
def test_what_is_kept_says_the_same_as_what_is_read_anew(kafka: KafkaCluster, most_batches: int) -> None:
    """Starts that go on and back, ends that grow, a bound on what is kept, and a ceiling that rises over dates."""
    topic = f"index-same-{most_batches}"
    create_topic(kafka.address, topic, 1, message_timestamp_after_max_ms=str(2**62))
    chance = random.Random(8)
    count = 1_500
    times = [
        DAY + n + chance.randrange(-20, 20) + (chance.random() < 0.02) * chance.randrange(4_000) for n in range(count)
    ]
    # Ends are between batches, so every batch has its 25 records, however long writing takes.
    batches = {"batch.num.messages": 25, "linger.ms": int(1000 * TIMEOUT)}
    produce(kafka.address, topic, [(0, time, b"x") for time in times], **batches)
    partition = Partition(topic, 0)

    async def check() -> None:
        cluster = Cluster({"bootstrap.servers": kafka.address})
        try:
            await cluster.partitions([topic])
            kept = Indexes(cluster, RULES, most_batches)
            start, end, ceiling = 0, 0, DAY + 500
            for _ in range(40):
                end = min(count, max(end, start + chance.randrange(1, 60) * 25))
                before = max((time for time in times[:start] if time <= ceiling), default=BEFORE_ALL_TIME)
                part = Part(start=start, end=end, reached=before)
                starts, reached = await kept.running(partition, part, ceiling)
                _, anew = await Indexes(cluster, RULES).running(partition, part, ceiling)
                assert reached[-1] == anew[-1]
                assert kept.batches <= most_batches
                assert starts == sorted(starts)
                # No row is behind the batch that is to have it.
                for time in range(DAY, DAY + 2_000, 97):
                    first = next((n for n in range(start, end) if time <= times[n] <= ceiling), None)
                    place = next((place for place, r in enumerate(reached) if r >= time), None)
                    assert first is None or (place is not None and starts[place] <= first)
                start = max(0, min(count - 25, start + 25 * chance.randrange(-1, 5)))
                ceiling += chance.randrange(-50, 200)
        finally:
            cluster.close()

    asyncio.run(check())
