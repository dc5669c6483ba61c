"""When dead letters are told of: the first at once, what comes after it as a count, in one line every so often."""

from strandline.units import Nanos


class Letters:
    """Counts what was put away, and says when a line is due."""

    def __init__(self, place: str, every: Nanos) -> None:
        self._place = place
        self._every = every
        self._total = 0
        self._untold = 0
        self._first: str | None = None
        self._told_at: Nanos | None = None

    def add(self, count: int, first: str | None) -> None:
        """So many more; which the first of them is, and why it was put away."""
        self._total += count
        self._untold += count
        self._first = self._first or first

    def line(self, now: Nanos | None) -> str | None:
        """What is to be told at this time, where anything is; without a time, all that is untold."""
        is_due = self._told_at is None or now is None or now - self._told_at >= self._every
        if not self._untold or not is_due:
            return None
        line = f"records that the stream does not take, put away in {self._place}: {self._untold:,}"
        if self._total > self._untold:
            line += f", {self._total:,} since the start"
        if self._first is not None:
            line += f"; the first is {self._first}"
        self._untold, self._first, self._told_at = 0, None, now
        return line
