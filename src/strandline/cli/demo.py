"""`strandline demo`: a consumer that finishes records out of order is cut off half-way, and nothing is lost."""

import heapq
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from strandline.cli.signals import on_stop_request
from strandline.clock import SystemClock
from strandline.errors import StrandlineError
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Claim, Progress
from strandline.stack import Stack
from strandline.units import Nanos

TOPIC = "tide"
PARTITIONS = 4
RECORDS = 20_000
# Read no further ahead of the frontier than this: it bounds what repeats after a crash.
MOST_REPEATS = 500
SLOWEST_MS = 60
TIMEOUT = 60.0
REFRESH_PER_S = 8

clock = SystemClock()


def demo() -> None:
    """Show on a real Kafka that progress is never marked past what has been finished."""
    console = Console()
    stack = Stack(["kafka"])
    with on_stop_request(stack.cancelled.set):
        console.print("Starting a real Kafka broker ...")
        with stack:
            try:
                first, committed, second = _cut_off_half_way(stack, console)
            except (KafkaException, TimeoutError) as error:
                reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer in time"
                raise StrandlineError(f"Kafka at {stack.kafka[0].address}: {reason}") from error
    _tell(console, first, second, committed)


def _cut_off_half_way(stack: Stack, console: Console) -> tuple[Counter[str], int, Counter[str]]:
    bootstrap = stack.kafka[0].address
    console.print(f"Writing {RECORDS:,} records to {PARTITIONS} partitions of '{TOPIC}' on {bootstrap} ...")
    _write_records(bootstrap)
    first = _consume(bootstrap, stack, console, "first consumer, to be cut off half-way", stop_after=RECORDS // 2)
    committed = sum(_committed(bootstrap).values())
    second = _consume(bootstrap, stack, console, "second consumer, from the committed frontier")
    return first, committed, second


def _write_records(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(timeout=TIMEOUT)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": RECORDS})
    for number in range(RECORDS):
        producer.produce(TOPIC, value=str(number), partition=number % PARTITIONS)
    if producer.flush(TIMEOUT):
        raise StrandlineError(f"the broker at {bootstrap} did not take all records within {TIMEOUT:g} s")


@contextmanager
def _consumer(bootstrap: str) -> Iterator[Consumer]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False})
    try:
        yield consumer
    finally:
        consumer.close()


def _committed(bootstrap: str) -> dict[Partition, int]:
    with _consumer(bootstrap) as consumer:
        wanted = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return {Partition(p.topic, p.partition): max(p.offset, 0) for p in consumer.committed(wanted, timeout=TIMEOUT)}


def _consume(bootstrap: str, stack: Stack, console: Console, title: str, stop_after: int = RECORDS) -> Counter[str]:
    """Read and finish records until all are finished, or until so many have been: then leave without a last commit."""
    start = _committed(bootstrap)
    left = RECORDS - sum(start.values())
    progress = Progress()
    progress.assign(start)
    finished: Counter[str] = Counter()
    flying: list[tuple[Nanos, Claim, str]] = []
    marks = dict(start)
    chance = random.Random(4)  # noqa: S311  (any order will do)
    deadline = time.monotonic() + TIMEOUT
    with (
        _consumer(bootstrap) as consumer,
        Live(console=console, refresh_per_second=REFRESH_PER_S, transient=True) as live,
    ):
        consumer.assign([TopicPartition(p.topic, p.number, offset) for p, offset in start.items()])
        while finished.total() < min(left, stop_after):
            if stack.cancelled.is_set():
                raise StrandlineError("the demo was stopped")
            failure = stack.failure()
            if failure is not None:
                raise failure
            if time.monotonic() > deadline:
                raise StrandlineError(f"the demo did not finish within {TIMEOUT:g} s")
            for message in _read(consumer, MOST_REPEATS - progress.beyond()):
                claim, value = _take(progress, message)
                heapq.heappush(
                    flying, (Nanos(clock.monotonic() + chance.randrange(SLOWEST_MS) * 1_000_000), claim, value)
                )
            while flying and flying[0][0] <= clock.monotonic():
                _, claim, value = heapq.heappop(flying)
                finished[value] += 1
                progress.done(claim)
            commits = progress.take_commits()
            if commits:
                marks.update(commits)
                consumer.commit(
                    offsets=[TopicPartition(p.topic, p.number, o) for p, o in commits.items()], asynchronous=False
                )
            live.update(_picture(title, progress, marks, finished))
    console.print(_picture(title, progress, marks, finished))
    return finished


def _read(consumer: Consumer, room: int) -> list[Message]:
    messages: list[Message] = consumer.consume(room, timeout=0.005) if room else []
    for message in messages:
        error = message.error()
        if error is not None:
            raise KafkaException(error)
    return messages


def _take(progress: Progress, message: Message) -> tuple[Claim, str]:
    partition = Partition(str(message.topic()), int(message.partition() or 0))
    value = message.value() or b""
    return progress.register(partition, int(message.offset() or 0), clock.monotonic()), bytes(value).decode()


def _picture(title: str, progress: Progress, marks: dict[Partition, int], finished: Counter[str]) -> RenderableType:
    table = Table(title=f"{title}: {finished.total():,} finished", title_justify="left")
    for column in ("partition", "committed", "in flight", "held by offset", "for"):
        table.add_column(column, justify="right", min_width=10)
    now = clock.monotonic()
    for partition, mark in sorted(marks.items()):
        oldest = progress.oldest(partition, now)
        held = ("", "") if oldest is None else (f"{oldest.position:,}", f"{oldest.age / 1e6:.0f} ms")
        table.add_row(str(partition.number), f"{mark:,}", f"{progress.in_flight(partition):,}", *held)
    return table


def _tell(console: Console, first: Counter[str], second: Counter[str], committed: int) -> None:
    seen = first + second
    lost = RECORDS - len(seen)
    repeated = seen.total() - len(seen)
    console.print(f"The first finished {first.total():,} records and had {committed:,} committed when it was cut off.")
    console.print(f"Finished in all: {len(seen):,} of {RECORDS:,}.  Lost: {lost}.  Repeated: {repeated}.")
    console.print(f"(What was finished beyond the frontier is repeated; it reads at most {MOST_REPEATS} ahead of it.)")
    if lost:
        raise StrandlineError(f"{lost} records were lost")
    if repeated > MOST_REPEATS:
        raise StrandlineError(f"{repeated} records were repeated, more than {MOST_REPEATS}")
