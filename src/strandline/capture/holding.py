"""What waits to be passed on, in order: the ends of requests until Kafka has them, and all that came behind them."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class Deliveries:
    """What has become of the records of one recording.

    Counted, not named: they have one key, so that Kafka acknowledges them in order.
    """

    __slots__ = ("_tell", "acknowledged", "is_given_up", "is_lost", "published")

    def __init__(self, tell: Callable[["Deliveries"], None]) -> None:
        self._tell = tell
        self.published = 0
        self.acknowledged = 0
        self.is_lost = False
        self.is_given_up = False
        """Whether the recording has ended for it."""

    def settle(self, is_acknowledged: bool) -> None:
        """One more has been acknowledged, or never will be."""
        if is_acknowledged:
            self.acknowledged += 1
        else:
            self.is_lost = True
        self._tell(self)


@dataclass(slots=True)
class Held:
    """The last bytes of a request, and which records have to be in Kafka before they go on."""

    data: bytes
    deliveries: Deliveries
    up_to: int
    since: float
    is_timed_out: bool = False

    @property
    def must_wait(self) -> bool:
        """A record that was lost is waited for as long as any other."""
        is_recorded = not self.deliveries.is_lost and self.deliveries.acknowledged >= self.up_to
        return not is_recorded and not self.is_timed_out


class EndOfRequests:
    """The client sends no more."""


class Waiting:
    """A queue that stops at a request which must wait."""

    __slots__ = ("_items", "bytes")

    def __init__(self) -> None:
        self._items: deque[bytes | Held | EndOfRequests] = deque()
        self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def held(self) -> Held | None:
        """The request that all others wait for."""
        return self._items[0] if self._items and isinstance(self._items[0], Held) else None

    def put(self, item: bytes | Held | EndOfRequests) -> None:
        """Behind all others."""
        self._items.append(item)
        self.bytes += _size(item)

    def pop(self) -> bytes | Held | EndOfRequests | None:
        """What goes on next; None where it must wait, and where there is nothing."""
        if not self._items or (isinstance(first := self._items[0], Held) and first.must_wait):
            return None
        item = self._items.popleft()
        self.bytes -= _size(item)
        return item

    def drop(self) -> int:
        """Forget all; how many requests were held."""
        held = sum(isinstance(item, Held) for item in self._items)
        self._items.clear()
        self.bytes = 0
        return held


def _size(item: bytes | Held | EndOfRequests) -> int:
    match item:
        case Held():
            return len(item.data)
        case EndOfRequests():
            return 0
        case _:
            return len(item)
