"""The options of `kafka_ordered`, and those that name a range of a log, read once before anything is done."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypedDict

from strandline.errors import OptionError, did_you_mean
from strandline.kafka.cluster import ISOLATIONS, NAMES
from strandline.kafka.starts import StartAt, refuse_twice
from strandline.kafka.words import EndAt, parse_end, parse_start
from strandline.ordered.epochs import Limits
from strandline.ordered.merge import check_buffer
from strandline.ordered.reading import Rules
from strandline.spark.options import KAFKA, choice, count, known, span

RANGE = ("start", "end", "isolation", "onMissing", "onCorrupt", "bufferBytes", "maxAhead")
EPOCHS = ("maxRowsPerEpoch", "maxBytesPerEpoch", "maxSpanPerEpoch")
# By their lower-case form, which is how Spark hands them on.
OPTIONS = {name.lower(): name for name in ("topics", *RANGE, "slices", *EPOCHS)}
DEFAULT_BUFFER = 256 << 20
# Each is a task of Spark, and a place that is looked for in the log.
MOST_SLICES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """What a range of a log is, and how it is read."""

    settings: Mapping[str, str] = field(repr=False)
    topics: tuple[str, ...]
    start: StartAt
    end: EndAt | None
    rules: Rules
    buffer_bytes: int
    max_ahead: timedelta


class _Range(TypedDict):
    start: StartAt
    end: EndAt | None
    rules: Rules
    buffer_bytes: int
    max_ahead: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(RangeOptions):
    """The options of `kafka_ordered`."""

    slices: int | None
    limits: Limits

    @classmethod
    def parse(cls, raw: Mapping[str, str]) -> "SourceOptions":
        """Read the options; raises OptionError."""
        settings, options = split(raw, OPTIONS)
        topics = tuple(topic.strip() for topic in options.get("topics", "").split(",") if topic.strip())
        if not topics:
            raise OptionError("option 'topics' is missing: names of topics, commas between")
        refuse_twice(topics)
        slices = count(options, "slices")
        if slices is not None and slices > MOST_SLICES:
            raise OptionError(f"option 'slices' is '{slices}'; it takes at most {MOST_SLICES:,}")
        return cls(
            settings=settings,
            topics=topics,
            slices=slices,
            limits=Limits(
                rows=count(options, "maxRowsPerEpoch"),
                bytes=count(options, "maxBytesPerEpoch"),
                span=span(options, "maxSpanPerEpoch"),
            ),
            **read_range(options),
        )

    def for_stream(self) -> "SourceOptions":
        """The same, when a stream can do with them."""
        if self.end is not None:
            raise OptionError("option 'end' is for a batch; a stream has none: leave it out")
        return self


def split(raw: Mapping[str, str], valid: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of Kafka, and the other options by their names in lower case; raises OptionError."""
    settings = {name[len(KAFKA) :]: value for name, value in raw.items() if name.lower().startswith(KAFKA)}
    options = known({name: value for name, value in raw.items() if not name.lower().startswith(KAFKA)}, valid)
    for name in settings:
        if name not in NAMES - {"group.id"}:
            raise OptionError(f"option 'kafka.{name}' is unknown; {did_you_mean(name, NAMES - {'group.id'})}")
    if "bootstrap.servers" not in settings:
        raise OptionError("option 'kafka.bootstrap.servers' is missing")
    return settings, options


def read_range(options: Mapping[str, str]) -> _Range:
    """The options that say which range of a log is read, and how."""
    start, end = options.get("start", "earliest"), options.get("end")
    if start == "committed":
        raise OptionError("option 'start' takes no 'committed': Spark keeps the position in its checkpoint")
    buffer_bytes = count(options, "bufferBytes") or DEFAULT_BUFFER
    check_buffer(buffer_bytes)
    max_ahead = span(options, "maxAhead")
    return _Range(
        start=parse_start(start),
        end=None if end is None else parse_end(end),
        rules=Rules(
            ISOLATIONS[choice(options, "isolation", ("read_committed", "read_uncommitted"))],
            skip_corrupt=choice(options, "onCorrupt", ("error", "skip")) == "skip",
            skip_missing=choice(options, "onMissing", ("error", "earliest")) == "earliest",
        ),
        buffer_bytes=buffer_bytes,
        max_ahead=timedelta(hours=1) if max_ahead is None else max_ahead,
    )
