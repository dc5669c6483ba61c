"""What bounds a replay. Other machines are sent it, so it is in no compiled module: a frozen value of one cannot be."""

from dataclasses import dataclass
from datetime import timedelta

from strandline.wire.answers import KEEP


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds the engine."""

    concurrency: int = 1024
    """Exchanges with the target at a time."""
    memory: int = 256 << 20
    """Bytes of requests that wait; beyond it they go to disk."""
    answer_within: timedelta = timedelta(seconds=150)
    down_for: timedelta = timedelta(minutes=10)
    """How long the target may be down before the replay gives up."""
    quiescence: timedelta = timedelta(seconds=5)
    """How long a connection rests that another member may have had open."""
    keep: int = KEEP
    """How much of an answer's body is kept."""
