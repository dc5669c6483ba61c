"""Where a replay begins in the log, where the log ends by then, and the time of the source at that place."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from threading import Event

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import KafkaError as Code

from strandline.errors import GroupInUse
from strandline.kafka.librdkafka import AWAY, client, translated
from strandline.kafka.listing import Listing
from strandline.kafka.offsets import GroupOffsets
from strandline.kafka.partition import Partition
from strandline.kafka.starts import milliseconds
from strandline.units import Nanos
from strandline.wire.captured import Unreadable, stream_of
from strandline.wire.traffic import when

POLL = 0.2
READ_AHEAD = {"queued.max.messages.kbytes": 2048, "fetch.max.bytes": 1 << 20, "message.max.bytes": 1 << 20}
"""One record of each partition is wanted; of what comes with it, no more than this is kept."""

log = logging.getLogger(__name__)


class From(Enum):
    """Where to begin."""

    COMMITTED = "committed"
    """Where the group is, or else at the oldest record."""
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Span:
    """What there is to replay when a run begins."""

    begin: Mapping[Partition, int] | None
    """Where the group is to begin; None for where it is."""
    starts: Mapping[Partition, int]
    """The oldest record that each partition has."""
    ends: Mapping[Partition, int]


async def find_span(settings: Mapping[str, object], topic: str, start: From | datetime) -> Span:
    """Look where a topic begins and ends now."""
    listing = await Listing.of(reach(settings), topic)
    starts, ends = await listing.earliest(), await listing.latest()
    match start:
        case From.COMMITTED:
            return Span(None, starts, ends)
        case From.LATEST:
            return Span(ends, starts, ends)
        case From.EARLIEST:
            return Span(starts, starts, ends)
        case time:
            return Span(ends | await listing.at(milliseconds(time)), starts, ends)


async def send_group_to(settings: Mapping[str, object], begin: Mapping[Partition, int]) -> None:
    """Have the whole group begin here, unless it is at work: then we go on with it where it is."""
    offsets = GroupOffsets(settings)
    try:
        await offsets.commit(begin)
    except GroupInUse:
        log.warning("the group '%s' is at work: going on where it is, not where --from says", offsets.name)
    finally:
        await offsets.close()


async def where_group_is(settings: Mapping[str, object], span: Span) -> dict[Partition, int]:
    """The offset at which each partition is read first; what is no longer there to be read is told."""
    offsets = GroupOffsets(settings)
    try:
        marks = await offsets.committed(list(span.ends))
    finally:
        await offsets.close()
    for partition, mark in sorted(marks.items()):
        if mark < span.starts[partition]:
            last = span.starts[partition] - 1
            log.warning("%s: Kafka has deleted %d to %d before the group had read them", partition, mark, last)
    return {partition: max(first, marks.get(partition, first)) for partition, first in span.starts.items()}


async def first_time(settings: Mapping[str, object], marks: Mapping[Partition, int], stopped: Event) -> Nanos | None:
    """The earliest time of the source that the first records of all partitions tell; None if `stopped` comes first.

    A partition without a record is passed over. While there is no record at all, the first that comes is waited for.
    """
    return await asyncio.to_thread(_first_time, settings, marks, stopped)


def _first_time(settings: Mapping[str, object], marks: Mapping[Partition, int], stopped: Event) -> Nanos | None:
    own = {
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        # What is deleted meanwhile is passed over, not all that there is.
        "auto.offset.reset": "earliest",
        **READ_AHEAD,
    }
    consumer = client(Consumer, {**settings, **own})
    times: dict[Partition, Nanos] = {}
    unheard = set(marks)
    try:
        consumer.assign([TopicPartition(*partition, offset) for partition, offset in marks.items()])
        while (unheard or not times) and not stopped.is_set():
            message = consumer.poll(POLL)
            if message is None:
                continue
            partition = Partition(message.topic() or "", message.partition() or 0)
            problem = message.error()
            if problem is not None:
                if problem.code() == Code._PARTITION_EOF:
                    unheard.discard(partition)
                elif problem.code() not in AWAY:
                    raise translated(problem, str(settings.get("bootstrap.servers")))
            elif (time := time_of(message.value())) is not None:
                times.setdefault(partition, time)
                unheard.discard(partition)
                consumer.pause([TopicPartition(*partition)])
        return min(times.values(), default=None)
    finally:
        consumer.close()


def time_of(value: bytes | None) -> Nanos | None:
    """The time of a record's first observation; None where it tells none."""
    try:
        stream = stream_of(value)
    except Unreadable:
        return None
    return when(stream.subStream[0]) if stream.subStream and stream.subStream[0].HasField("ts") else None


def reach(settings: Mapping[str, object]) -> dict[str, object]:
    """What is needed to reach Kafka, without what is for members of a group only."""
    return {name: value for name, value in settings.items() if name not in {"group.id", "session.timeout.ms"}}
