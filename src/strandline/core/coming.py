"""Whether what was in a log once is still to be expected from whoever reads it again for us.

Before the first row there may be much to read, for minutes, of which nothing is ours: the log since the oldest
transaction that was open then. So time counts only while the reader stands still, or is past the place.
"""

from strandline.units import Nanos


class Coming:
    """Looks at where the reader is, now and then."""

    def __init__(self, wanted: int, within: Nanos, now: Nanos) -> None:
        """What is at a position, or before it, is to come within a time in which the reader does not come nearer."""
        self._wanted = wanted
        self._within = within
        self._since = now
        self._place: int | None = None

    def came(self, now: Nanos) -> None:
        """Some of it is here."""
        self._since = now

    def look(self, place: int | None, now: Nanos) -> bool:
        """The reader is here, or has not said where; whether the rest is to be waited for."""
        if place is not None and place != self._place:
            if self._place is None or place < self._wanted:
                self._since = now
            self._place = place
        return now - self._since <= self._within
