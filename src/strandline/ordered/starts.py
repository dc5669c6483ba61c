"""Where to begin: a policy a topic, resolved to an offset for every partition before the first row is read."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from strandline.errors import OffsetOutOfRange, OptionError
from strandline.kafka.cluster import EARLIEST, LATEST, Cluster, Isolation
from strandline.kafka.offsets import GroupOffsets
from strandline.kafka.partition import Partition
from strandline.ordered.merge import Part
from strandline.ordered.reading import Rules
from strandline.ordered.slices import Slicer

TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
LONGEST_AGO = timedelta(days=36_525)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_a(value: object, *types: type) -> bool:
    """Whether a value is what it is declared to be: callers without a type checker write `Latest` for `Latest()`."""
    return isinstance(value, types)


def refuse_twice(names: Iterable[str]) -> None:
    """Refuse a topic that is named more than once."""
    for name, count in Counter(names).items():
        if count > 1:
            raise OptionError(f"topic '{name}' is named twice")


@dataclass(frozen=True, slots=True)
class Earliest:
    """The oldest record that there is."""


@dataclass(frozen=True, slots=True)
class Latest:
    """What comes from now on."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record with this time or a later one."""

    time: datetime

    def __post_init__(self) -> None:
        if not is_a(self.time, datetime):
            raise OptionError(f"AtTime takes a datetime, not {self.time!r}")
        if self.time.tzinfo is None:
            raise OptionError(f"AtTime({self.time}) has no time zone; give it one, such as datetime.UTC")


@dataclass(frozen=True, slots=True)
class Ago:
    """The first record not older than this."""

    duration: timedelta

    def __post_init__(self) -> None:
        if not is_a(self.duration, timedelta):
            raise OptionError(f"Ago takes a timedelta, not {self.duration!r}")
        if not timedelta(0) <= self.duration <= LONGEST_AGO:
            raise OptionError(
                f"Ago takes up to {LONGEST_AGO.days} days back, not {self.duration}; Earliest() takes all"
            )


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset that the group has committed, or another start where there is none."""

    otherwise: Earliest | Latest | AtTime | Ago = field(default_factory=Earliest)

    def __post_init__(self) -> None:
        if not is_a(self.otherwise, Earliest, Latest, AtTime, Ago):
            raise OptionError(f"Committed otherwise takes Earliest(), Latest(), AtTime or Ago, not {self.otherwise!r}")


StartAt = Earliest | Latest | Committed | AtTime | Ago


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, and where to begin in it."""

    name: str
    start: StartAt = field(default_factory=Earliest)

    def __post_init__(self) -> None:
        if not is_a(self.name, str) or not TOPIC_NAME.fullmatch(self.name):
            raise OptionError(f"{self.name!r} is not the name of a topic")
        if not is_a(self.start, Earliest, Latest, Committed, AtTime, Ago):
            valid = "Earliest(), Latest(), Committed(), AtTime or Ago"
            raise OptionError(f"topic '{self.name}' starts at {valid}, not at {self.start!r}")


@dataclass(frozen=True, slots=True)
class Range:
    """What there was of a partition at the start."""

    start: int
    end: int
    """Behind the last record that may be read: under `read_committed` the last stable offset."""
    earliest: int


async def resolve(
    cluster: Cluster,
    topics: Sequence[Topic],
    rules: Rules,
    group: GroupOffsets | None = None,
    *,
    now: datetime,
    ceiling: int,
) -> dict[Partition, Range]:
    """The range of every partition of the topics. Timestamps above the ceiling do not count."""
    isolation = rules.isolation
    starts = {topic.name: topic.start for topic in topics}
    partitions = await cluster.partitions(list(starts))
    if any(isinstance(start, Committed) for start in starts.values()) and group is None:
        raise OptionError("Committed() needs the setting 'group.id'")
    wanted: dict[Partition, int] = {}
    committed: dict[Partition, int] = {}
    if group is not None:
        asked = [p for p in partitions if isinstance(starts[p.topic], Committed)]
        committed = await group.committed(asked) if asked else {}
    for partition in partitions:
        start = starts[partition.topic]
        if isinstance(start, Committed) and partition not in committed:
            start = start.otherwise
        wanted[partition] = _asked(start, now)
    earliest = await cluster.offsets(dict.fromkeys(partitions, EARLIEST), isolation)
    ends = await cluster.offsets(dict.fromkeys(partitions, LATEST), isolation)
    times: dict[Partition, int] = {}
    for time in {time for time in wanted.values() if time >= 0}:
        parts = {p: Part(start=earliest[p].offset, end=ends[p].offset) for p in partitions if wanted[p] == time}
        times.update(await Slicer(cluster, parts, rules, ceiling).firsts(time))
    await _check(cluster, committed, {p: earliest[p].offset for p in committed})
    ranges = {}
    for partition in partitions:
        first, end = earliest[partition].offset, ends[partition].offset
        start_at = times.get(partition, end if wanted[partition] == LATEST else first)
        start_at = committed.get(partition, start_at)
        ranges[partition] = Range(start_at, max(start_at, end), first)
    return ranges


def milliseconds(time: datetime) -> int:
    """A time as Kafka has it, exactly: rounded down, by whole numbers."""
    return (time - EPOCH) // timedelta(milliseconds=1)


def _asked(start: StartAt, now: datetime) -> int:
    match start:
        case Latest():
            return LATEST
        case AtTime(time):
            return max(0, milliseconds(time))
        case Ago(duration):
            return max(0, milliseconds(now - duration))
        case _:
            return EARLIEST


async def _check(cluster: Cluster, committed: Mapping[Partition, int], earliest: Mapping[Partition, int]) -> None:
    """Refuse what a group has committed beyond the end of the log: the topic is not the one that it has read."""
    ends = await cluster.offsets(dict.fromkeys(committed, LATEST), Isolation.READ_UNCOMMITTED)
    for partition, offset in committed.items():
        if offset > ends[partition].offset:
            raise OffsetOutOfRange(partition, asked=offset, earliest=earliest[partition], latest=ends[partition].offset)
