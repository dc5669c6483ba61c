"""What was polled from Kafka, as records that are ours to finish."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from strandline.kafka.events import Taken
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.units import Nanos


class Batch(NamedTuple):
    """Records in a row."""

    records: list[Taken]
    size: int
    """Of their keys and values, in bytes."""
    stop: int
    """Which message is the next: one with an error, or none."""


def take(
    messages: Sequence[Message], start: int, owned: Mapping[Partition, int], progress: Progress, now: Nanos
) -> Batch:
    """Take messages into flight, from this one on up to the first with an error. Of partitions that went, none is."""
    names: dict[tuple[str, int], Partition] = {}
    records: list[Taken] = []
    size = 0
    for index in range(start, len(messages)):
        message = messages[index]
        if message.error() is not None:
            return Batch(records, size, index)
        # To find the name of a partition costs a third of what it costs to make it.
        pair = message.topic() or "", message.partition() or 0
        place = names.get(pair) or names.setdefault(pair, Partition(*pair))
        generation = owned.get(place)
        if generation is None:
            continue
        offset, (kind, timestamp) = message.offset() or 0, message.timestamp()
        key, value = message.key(), message.value()
        claim = progress.register(place, offset, now)
        stamp = None if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
        records.append(Taken(place, offset, stamp, key, value, claim, generation))
        size += (0 if key is None else len(key)) + (0 if value is None else len(value))
    return Batch(records, size, len(messages))
