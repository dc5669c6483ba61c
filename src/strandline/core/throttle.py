"""How many at once: some more while all is well and there is use for them, half as many whenever it is not."""


class Throttle:
    """Grows by its least, halves, and stays between its least and its most. It begins with the most."""

    def __init__(self, *, least: int, most: int, late: float) -> None:
        if not 1 <= least <= most:
            raise ValueError("a throttle needs 1 <= least <= most")
        self._least = least
        self._most = most
        self._late = late
        self.at_once = most

    def observe(self, lateness: float, used: int) -> int:
        """How many now, after things were so late while so many were at it."""
        if lateness > self._late:
            # Of those that were at it: what was only allowed has made nobody late.
            self.at_once = max(self._least, min(self.at_once, used) // 2)
        elif used >= self.at_once and lateness <= self._late / 2:
            self.at_once = min(self._most, self.at_once + self._least)
        return self.at_once
