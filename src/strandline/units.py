"""The one unit of time: whole nanoseconds, so that no sum ever drifts."""

from datetime import timedelta
from typing import NewType

Nanos = NewType("Nanos", int)


def nanos(duration: timedelta) -> Nanos:
    """A duration as nanoseconds, exactly."""
    return Nanos((duration.days * 86_400 + duration.seconds) * 1_000_000_000 + duration.microseconds * 1_000)
