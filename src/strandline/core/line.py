"""Who goes in next where only so many may be inside at once: by rank, and within a rank whoever came first.

Where too many wait, the last of the lowest rank is sent away; whoever is served sooner is sent away later.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Line(Generic[Name]):
    """Those inside and those who wait. Rank 0 goes first."""

    def __init__(self, *, at_once: int, most_waiting: int) -> None:
        self.at_once = at_once
        self._most_waiting = most_waiting
        self._inside: set[Name] = set()
        self._waiting: dict[int, dict[Name, None]] = {}

    @property
    def inside(self) -> int:
        return len(self._inside)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def come(self, name: Name, rank: int) -> Name | None:
        """Wait; whoever is sent away for it, which may be the one that came."""
        self._waiting.setdefault(rank, {})[name] = None
        if self.inside + self.waiting <= self.at_once or self.waiting <= self._most_waiting:
            return None
        last = max(rank for rank, names in self._waiting.items() if names)
        sent_away, _ = self._waiting[last].popitem()
        return sent_away

    def admit(self) -> list[Name]:
        """Those who go in now, in their order."""
        found: list[Name] = []
        for rank in sorted(self._waiting):
            names = self._waiting[rank]
            while names and self.inside < self.at_once:
                name = next(iter(names))
                del names[name]
                self._inside.add(name)
                found.append(name)
            if not names:
                del self._waiting[rank]
        return found

    def leave(self, name: Name) -> None:
        """Be inside no more, or wait no more."""
        self._inside.discard(name)
        for names in self._waiting.values():
            names.pop(name, None)
