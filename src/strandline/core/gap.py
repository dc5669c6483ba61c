"""Where a client that was away goes on, and exactly what it can no longer have.

A gap runs from `first` up to, and without, `end`. What the log holds now decides, not what the client believes.
"""

from dataclasses import dataclass
from enum import Enum


class Reason(Enum):
    """Why offsets cannot be had."""

    DELETED = "deleted"
    """Below the log's start: retention, or somebody deleted records."""
    RECREATED = "recreated"
    """The topic was deleted and made anew; its offsets are those of another log."""
    TRUNCATED = "truncated"
    """The client saw records that the cluster has lost since, such as in an unclean election."""
    COMPACTED = "compacted"
    """Newer records with the same keys have taken their place."""
    BEYOND_END = "beyond_end"
    """The client claims more than there is."""
    HORIZON = "horizon"
    """Older than this gateway gives out."""
    CORRUPT = "corrupt"
    """A batch of records that cannot be read."""
    NOT_SERVED = "not_served"
    """The topic was taken out of what this gateway serves."""
    CONFLATED = "conflated"
    """The client was slow, and asked to be given the latest only."""


# After these gaps the same offsets have other records.
ANOTHER_LOG = frozenset({Reason.RECREATED, Reason.TRUNCATED, Reason.BEYOND_END})


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that a client does not get."""

    first: int
    end: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Log:
    """A partition as it is now."""

    topic_id: str
    end: int
    horizon: int = 0
    """The first offset that is given out."""


def begin(
    offset: int, log: Log, *, topic_id: str | None = None, epoch_end: int | None = None, seen: int | None = None
) -> tuple[int, list[Gap]]:
    """Where a client goes on that wants an offset, and what is missing before that.

    `topic_id` is that of the log that it has seen, and `epoch_end` where the records of a leader's epoch end that it
    has seen up to the offset, or up to `seen`; None where that is not known. What the log has deleted shows when it is
    read.
    """
    if topic_id is not None and topic_id != log.topic_id:
        # What the old log had behind the offset nobody knows any more: of that log nothing comes from here on.
        return log.horizon, [Gap(offset, offset, Reason.RECREATED), *_older(0, log)]
    if epoch_end is not None and epoch_end < (offset if seen is None else seen):
        return max(epoch_end, log.horizon), [Gap(epoch_end, offset, Reason.TRUNCATED), *_older(epoch_end, log)]
    if offset > log.end:
        return log.end, [Gap(log.end, offset, Reason.BEYOND_END)]
    return max(offset, log.horizon), _older(offset, log)


def _older(offset: int, log: Log) -> list[Gap]:
    return [Gap(offset, log.horizon, Reason.HORIZON)] if offset < log.horizon else []
