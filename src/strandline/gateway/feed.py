"""A partition as the gateway holds it: what came lately as frames ready to send, and where it ends."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from strandline.core.channel import Row, Template
from strandline.core.gap import Gap, Reason
from strandline.core.recent import Recent
from strandline.kafka.cluster import Fetched, Isolation
from strandline.kafka.partition import Partition
from strandline.wire.envelope import Stated, data_of, frame_of
from strandline.wire.fetched import holes, rows, scan
from strandline.wire.records import (
    HEADERS,
    HEADERS_START,
    KEY_LENGTH,
    KEY_START,
    NULL,
    VALUE_LENGTH,
    VALUE_START,
    Columns,
    headers_at,
)

NO_END = 2**63 - 1
ISOLATION = Isolation.READ_COMMITTED
# What Python needs for a record besides its frame.
RECORD_BYTES = 250
BY_KEY = "{key}"


class Record(NamedTuple):
    """A record, ready to be sent."""

    offset: int
    channel: str
    """Empty where it has none; then only those hear it who hear everything."""
    frame: bytes
    key: bytes | None = None
    """Where it is not the channel: what the latest is kept of for slow clients."""


Item = Record | Gap


@dataclass(frozen=True, slots=True)
class Naming:
    """How the records of a topic are named."""

    channel: Template
    type: Template
    priority: Template

    @property
    def needs_headers(self) -> bool:
        return any(template.needs_headers for template in (self.channel, self.type, self.priority))


class Read(NamedTuple):
    """What was read of a partition, in order, the position behind it, and the leader's epoch there if known."""

    items: list[Item]
    position: int
    epoch: int | None


class Feed:
    """One partition."""

    __slots__ = ("epoch", "horizon", "naming", "partition", "recent", "topic_id")

    def __init__(self, partition: Partition, topic_id: str, naming: Naming, start: int, *, most_bytes: int) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.naming = naming
        self.recent: Recent[Item] = Recent(start, most_bytes=most_bytes)
        self.epoch: int | None = None
        """The leader's epoch of the last record; None where that is not known."""
        self.horizon = 0
        """The first offset that is given out."""

    @property
    def end(self) -> int:
        """The first offset that has not come yet."""
        return self.recent.end

    def since(self, offset: int, most: int) -> tuple[list[Item], int]:
        """The first items from an offset on that is still held, and where to go on behind them."""
        items, reached = self.recent.since(offset, most)
        around = self.recent.before(offset)
        if isinstance(around, Gap) and around.end > offset:
            items = [replace(around, first=offset), *items]
        return items, reached

    def take(self, read: Read) -> None:
        """Hold what has come."""
        if read.position > self.end:
            self.epoch = read.epoch
        for item in read.items:
            if isinstance(item, Gap):
                self.recent.add(item.first, item, RECORD_BYTES)
                self.recent.reach(item.end)
            else:
                self.recent.add(item.offset, item, len(item.frame) + RECORD_BYTES)
        self.recent.reach(read.position)


def read(fetched: Fetched, naming: Naming) -> Read:
    """What a fetch brought, as records ready to send and gaps, in order."""
    scanned = scan(fetched.records, fetched.asked, NO_END, fetched.aborted, skip_corrupt=True)
    found = rows(scanned, skip_corrupt=True)
    corrupt = [(fault.offset, fault.next_offset) for fault in scanned.corrupt]
    items: list[Item] = [*_records(fetched.partition, found, naming)]
    items += [Gap(max(fetched.asked, low), high, Reason.CORRUPT) for low, high in corrupt]
    items += [Gap(low, high, Reason.COMPACTED) for low, high in holes(scanned, found)]
    if len(items) > len(found):
        items.sort(key=lambda item: item.first if isinstance(item, Gap) else item.offset)
    return Read(items, scanned.position, scanned.epoch)


def _records(partition: Partition, found: Columns, naming: Naming) -> Iterator[Record]:
    arena = found.arena.data
    topic, number = partition.topic, partition.number
    needs_headers, is_by_key = naming.needs_headers, naming.channel.text == BY_KEY
    columns = (KEY_START, KEY_LENGTH, VALUE_START, VALUE_LENGTH, HEADERS_START, HEADERS)
    fields = zip(*(found.table[column].tolist() for column in columns), strict=True)
    for offset, timestamp, (key_at, key_size, value_at, value_size, headers, count) in zip(
        found.offset.tolist(), found.timestamp.tolist(), fields, strict=True
    ):
        key = None if key_size == NULL else bytes(arena[key_at : key_at + key_size])
        value = None if value_size == NULL else bytes(arena[value_at : value_at + value_size])
        row = Row(topic, key, value, headers_at(found.arena, headers, count) if needs_headers else ())
        channel = naming.channel.of(row) or ""
        stated = Stated(
            topic,
            number,
            offset,
            timestamp,
            channel,
            naming.type.of(row) or "message",
            naming.priority.of(row) or "NORMAL",
        )
        yield Record(offset, channel, frame_of(stated, data_of(value)), None if is_by_key else key)
