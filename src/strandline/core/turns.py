"""Lets each name go once in a while, and only so many names of one owner: who makes names up gains little by it."""

from collections import OrderedDict

MOST_NAMES = 100_000


class Turns:
    """Remembers who went lately; of too many names, those who went first are forgotten."""

    def __init__(self, every_s: float, *, most_names: int) -> None:
        """`most_names` is how many of one owner go in the time that one name goes once in."""
        self._every = every_s
        self._most_names = most_names
        self._went: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Owners and names, in the order in which they went."""
        self._next: dict[str, dict[str, float]] = {}
        """By owner, and in the same order: when each name may go again."""

    def wait(self, owner: str, name: str, now: float) -> float:
        """0 where it may go now, else how many seconds it has to wait."""
        self._forget(now)
        names = self._next.get(owner, {})
        if name in names:
            return names[name] - now
        return next(iter(names.values())) - now if len(names) >= self._most_names else 0.0

    def take(self, owner: str, name: str, now: float) -> None:
        """It goes, having waited."""
        self._went[owner, name] = None
        self._next.setdefault(owner, {})[name] = now + self._every
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._went:
            owner, name = next(iter(self._went))
            names = self._next[owner]
            if names[name] > now and len(self._went) <= MOST_NAMES:
                return
            del self._went[owner, name]
            del names[name]
            if not names:
                del self._next[owner]
