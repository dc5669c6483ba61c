"""Which commits are still to be made, and when. Pure: time is an argument.

The mark of the group never goes back while a partition is ours: an offset below one that was to be committed before is
ignored, and one commit is on its way at a time, as a second one could be overtaken by a repeat of the first.
"""

from collections.abc import Iterable, Mapping

from strandline.kafka.partition import Partition
from strandline.units import Nanos


class Commits:
    """Offsets wait here until they are committed; those of a commit that failed wait on."""

    def __init__(self, every: Nanos) -> None:
        self._every = every
        self._due: dict[Partition, int] = {}
        self._highest: dict[Partition, int] = {}
        self._sent: dict[Partition, int] | None = None
        self._last: Nanos | None = None

    @property
    def on_its_way(self) -> bool:
        """Whether an answer is awaited."""
        return self._sent is not None

    def sent(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """What of these partitions is on its way."""
        sent = self._sent or {}
        return {partition: sent[partition] for partition in partitions if partition in sent}

    @property
    def waiting(self) -> bool:
        """Whether anything is still to be committed."""
        return bool(self._due)

    def add(self, moved: Mapping[Partition, int]) -> None:
        """These offsets are to be committed."""
        for partition, offset in moved.items():
            if offset >= self._highest.get(partition, 0):
                self._highest[partition] = self._due[partition] = offset

    def take(self, now: Nanos, *, at_once: bool = False) -> Mapping[Partition, int]:
        """What to send now; nothing while an answer is awaited, or before it is time."""
        early = self._last is not None and now - self._last < self._every
        if self._sent is not None or not self._due or (early and not at_once):
            return {}
        self._last = now
        self._sent = dict(self._due)
        return dict(self._due)

    def answered(self, *, taken: bool) -> None:
        """The answer to what was sent."""
        sent, self._sent = self._sent or {}, None
        if taken:
            for partition, offset in sent.items():
                if self._due.get(partition) == offset:
                    del self._due[partition]

    def forget(self, partitions: Iterable[Partition]) -> None:
        """These partitions are no longer ours."""
        for partition in partitions:
            for offsets in (self._due, self._highest, self._sent or {}):
                offsets.pop(partition, None)
