"""Leave to send: none while any reason stands against it. Who finds none is parked, and woken when there is."""

from collections.abc import Callable
from enum import Enum


class Reason(Enum):
    """Why nothing may be sent."""

    TARGET_DOWN = "the target cannot be reached"
    UNPROVEN = "it is not sure that the partitions are still ours"


class Leave:
    """What every session asks before it sends."""

    def __init__(self) -> None:
        self.is_given = True
        """Whether anything may be sent."""
        self._against: set[Reason] = set()
        self._parked: list[Callable[[], None]] = []

    @property
    def against(self) -> set[Reason]:
        """What stands against it."""
        return set(self._against)

    def park(self, wake: Callable[[], None]) -> None:
        """Call back when there is leave again."""
        self._parked.append(wake)

    def withdraw(self, reason: Reason) -> None:
        """Nothing may be sent from now on."""
        self._against.add(reason)
        self.is_given = False

    def restore(self, reason: Reason) -> None:
        """This reason stands no longer."""
        self._against.discard(reason)
        if not self._against:
            self.is_given = True
            parked, self._parked = self._parked, []
            for wake in parked:
                wake()
