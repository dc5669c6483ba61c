"""Room for so many in total and from each address, whichever holder keeps them; a holder that dies leaves with all."""

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Holder = TypeVar("Holder", bound=Hashable)


class Room(Generic[Holder]):
    """Counts who is in."""

    def __init__(self, *, most: int, most_per_address: int) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._total = 0
        self._addresses: Counter[str] = Counter()
        self._held: dict[Holder, Counter[str]] = {}

    @property
    def total(self) -> int:
        return self._total

    def enter(self, holder: Holder, address: str) -> bool:
        """Take one in, where there is room."""
        if self._total >= self._most or self._addresses[address] >= self._most_per_address:
            self._forget_empty(self._addresses, address)
            return False
        self._total += 1
        self._addresses[address] += 1
        self._held.setdefault(holder, Counter())[address] += 1
        return True

    def leave(self, holder: Holder, address: str, count: int = 1) -> None:
        """So many that a holder has taken in are gone."""
        held = self._held.get(holder, Counter())
        if held[address] < count:
            raise ValueError(f"{holder} does not hold {count} from {address}")
        self._total -= count
        for counter in (held, self._addresses):
            counter[address] -= count
            self._forget_empty(counter, address)

    def forget(self, holder: Holder) -> None:
        """A holder is gone with all that it held."""
        for address, count in list(self._held.get(holder, Counter()).items()):
            self.leave(holder, address, count)
        self._held.pop(holder, None)

    @staticmethod
    def _forget_empty(counter: Counter[str], address: str) -> None:
        if not counter[address]:
            del counter[address]
