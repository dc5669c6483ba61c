"""Where to begin and where to end, as people write it: `earliest`, `-1h`, `2026-01-01T00:00:00Z`, `live`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from strandline.errors import OptionError, did_you_mean
from strandline.kafka.starts import Ago, AtTime, Committed, Earliest, Latest, StartAt

STARTS: dict[str, StartAt] = {"earliest": Earliest(), "latest": Latest()}
GROUP_STARTS: dict[str, StartAt] = {**STARTS, "committed": Committed()}
EXAMPLES = ("-1h", "2026-01-01T00:00:00Z")
SPAN = re.compile(r"-(?P<count>[0-9]{1,100})(?P<unit>ms|s|m|h|d|w)")
UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
# Older than Kafka, and well within what a date can be.
LONGEST_SPAN = timedelta(days=36_525)


@dataclass(frozen=True, slots=True)
class Live:
    """Each partition's end as it was at the start."""


EndAt = Live | AtTime | Ago

ENDS: dict[str, EndAt] = {"live": Live(), "latest": Live(), "now": Live()}


def parse_start(text: str, words: Mapping[str, StartAt] = STARTS) -> StartAt:
    """Read one of the words, a span back from now or a time; raises OptionError."""
    return words.get(text) or parse_moment(text, "start", words)


def parse_end(text: str, others: Iterable[str] = ()) -> EndAt:
    """Read `live`, which is also `latest` and `now`, a span back from now or a time; raises OptionError.

    The error names, beside these, other words that the caller takes.
    """
    return ENDS.get(text) or parse_moment(text, "end", [*ENDS, *others])


def cutoff(end: EndAt, now: datetime) -> datetime | None:
    """The time before which all rows lie; None where no time ends them."""
    match end:
        case AtTime(time):
            return time
        case Ago(duration):
            return now - duration
        case Live():
            return None


def parse_moment(text: str, what: str, words: Iterable[str]) -> AtTime | Ago:
    """Read a span back from now or a time; raises OptionError, which names the words that the caller takes beside."""
    if span := SPAN.fullmatch(text):
        return Ago(_duration(text, int(span["count"]), UNITS[span["unit"]]))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"'{text}' is no {what}; {did_you_mean(text, [*words, *EXAMPLES])}") from None
    if time.tzinfo is None:
        raise OptionError(f"'{text}' has no time zone; write {time.isoformat()}Z, or an offset such as +02:00 for Z")
    return AtTime(time)


def _duration(text: str, count: int, unit: timedelta) -> timedelta:
    if count > LONGEST_SPAN // unit:
        raise OptionError(f"'{text}' reaches back more than a hundred years; write 'earliest'")
    return count * unit
