"""How old the log is at a position, by looks at its end: a position says nothing of time."""

from strandline.units import Nanos

MOST = 512
"""Looks that are kept. When there are more, every other one goes: what is older is known less exactly."""


class LogAge:
    """Remembers where the log ended at which time."""

    def __init__(self) -> None:
        self._seen: list[tuple[Nanos, int]] = []

    def look(self, now: Nanos, end: int) -> None:
        """The log ends here now."""
        seen = self._seen
        if seen and seen[-1][1] >= end:
            return
        seen.append((now, end))
        if len(seen) > MOST:
            del seen[1:-1:2]

    def behind(self, now: Nanos, position: int) -> Nanos:
        """For how long the log has gone beyond a position, at least; 0 where it does not.

        What lies before the position is forgotten, so positions must not go back.
        """
        seen = self._seen
        while seen and seen[0][1] <= position:
            del seen[0]
        return Nanos(now - seen[0][0] if seen else 0)
