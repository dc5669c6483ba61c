"""Where to begin: a policy a topic, resolved to an offset for every partition before the first row is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from strandline.errors import OffsetOutOfRange, OptionError
from strandline.kafka.cluster import EARLIEST, LATEST, Cluster, Isolation
from strandline.kafka.offsets import GroupOffsets
from strandline.kafka.partition import Partition
from strandline.kafka.starts import TOPIC_NAME, Ago, AtTime, Committed, Earliest, Latest, StartAt, is_a, milliseconds
from strandline.ordered.merge import Part
from strandline.ordered.reading import Rules
from strandline.ordered.slices import Slicer


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
