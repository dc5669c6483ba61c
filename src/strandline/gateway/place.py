"""Where a client of the gateway is, and what keeps that from one life of the application to the next."""

from dataclasses import dataclass, field
from typing import Protocol

# After these gaps other records come at the offsets of those that are lost.
TAKEN_BACK = {"truncated", "beyond_end"}


@dataclass(slots=True)
class Place:
    """The last token, and the first offsets not handled since, by topic and partition."""

    token: str | None = None
    positions: dict[str, dict[int, int]] = field(default_factory=dict)
    anew: dict[str, set[int]] = field(default_factory=dict, compare=False)
    """Of topics made anew, the partitions that were told of so far. Need not be stored: without it some come twice."""

    def resume(self) -> None:
        """A new connection goes on from here: without a token all positions are taken for ones in the topic of now."""
        if self.token is None:
            self.anew.clear()

    def next(self, topic: str, partition: int) -> int:
        """The first offset that has not been handled."""
        return self.positions.get(topic, {}).get(partition, 0)

    def reach(self, topic: str, partition: int, offset: int) -> None:
        """All before an offset has been handled."""
        self.positions.setdefault(topic, {})[partition] = max(offset, self.next(topic, partition))

    def pass_over(self, topic: str, partition: int, first: int, last: int | None, reason: str) -> None:
        """A gap has been handled."""
        if reason == "recreated":
            # All its partitions were: only of those that were told of before is the position one in the new topic.
            told = self.anew.setdefault(topic, set())
            if partition in told:
                told.clear()
            known = self.positions.get(topic, {})
            self.positions[topic] = {number: known[number] for number in told if number in known}
            told.add(partition)
            self.token = None
        elif reason == "not_served":
            self.positions.pop(topic, None)
        elif reason in TAKEN_BACK:
            self.positions.setdefault(topic, {})[partition] = first
            self.token = None
        elif last is not None:
            self.reach(topic, partition, last + 1)


class Store(Protocol):
    """Keeps a place."""

    async def load(self) -> Place | None: ...

    async def save(self, place: Place) -> None: ...


class InMemory:
    """Keeps the place as long as the process lives."""

    def __init__(self) -> None:
        self._place: Place | None = None

    async def load(self) -> Place | None:
        return self._place

    async def save(self, place: Place) -> None:
        self._place = place
