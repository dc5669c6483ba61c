"""Some that are not where they are asked for, while others are: they are asked for less and less often."""

from collections.abc import Collection, Hashable, Sequence
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class Away(Generic[Name]):
    """Remembers who was not there, how often, and when to ask for it again."""

    def __init__(self, *, first_s: float, most_s: float) -> None:
        self._first = first_s
        self._most = most_s
        self._known: dict[Name, tuple[float, float]] = {}
        """The last wait of each, and when that is over."""

    def __bool__(self) -> bool:
        return bool(self._known)

    def due(self, names: Sequence[Name], now: float) -> Sequence[Name]:
        """Those to ask for now; all where it is too early for each of them."""
        return [name for name in names if name not in self._known or self._known[name][1] <= now] or names

    def asked(self, names: Collection[Name], missing: Collection[Name], now: float) -> None:
        """Some have been asked for, and these of them were not there."""
        for name in names:
            wait, _ = self._known.pop(name, (0.0, 0.0))
            if name in missing:
                wait = min(self._most, max(self._first, 2 * wait))
                self._known[name] = wait, now + wait

    def keep(self, names: Collection[Name]) -> None:
        """Forget all but these."""
        self._known = {name: known for name, known in self._known.items() if name in names}
