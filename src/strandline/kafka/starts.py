"""Where to begin in a topic: at an end of it, at a time, or where a group is."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from strandline.errors import OptionError

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


def milliseconds(time: datetime) -> int:
    """A time as Kafka has it, exactly: rounded down, by whole numbers."""
    return (time - EPOCH) // timedelta(milliseconds=1)
