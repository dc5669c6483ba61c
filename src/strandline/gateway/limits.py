"""How much one client may ask for, and how much all of them together."""

from collections import OrderedDict
from dataclasses import dataclass

MOST_CLIENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds; all of them can be set."""

    connections: int = 20_000
    connections_per_address: int = 10_000
    subscriptions: int = 1_000
    message_bytes: int = 64 << 10
    messages_per_s: int = 100
    queue_bytes: int = 1 << 20
    """What may wait to be written to a client before it counts as slow."""
    page: int = 100
    """Replayed messages before the client has to ask for more, unless it says itself how many."""
    page_s: float = 5.0
    cold_every_s: float = 10.0
    """One replay from Kafka per client in so many seconds; what is in memory and following pages are free."""
    handshake_s: float = 10.0
    ping_every_s: float = 20.0
    drain_s: float = 30.0
    """How long a replay waits for a client that takes nothing."""


class Turns:
    """Lets each name go once in a while."""

    def __init__(self, every_s: float) -> None:
        self._every = every_s
        self._next: OrderedDict[str, float] = OrderedDict()

    def take(self, name: str, now: float) -> float:
        """0 where it may go now, else how many seconds it has to wait."""
        wait = self._next.get(name, now) - now
        if wait > 0:
            return wait
        self._next[name] = now + self._every
        self._next.move_to_end(name)
        while self._next and (len(self._next) > MOST_CLIENTS or next(iter(self._next.values())) <= now):
            self._next.popitem(last=False)
        return 0.0
