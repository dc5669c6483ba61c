"""Which offsets of the partitions that we own may be committed."""

from collections.abc import Iterable
from threading import Lock

from strandline.core.frontier import Frontier
from strandline.core.oldest import Oldest
from strandline.errors import NotOurs
from strandline.kafka.claim import Claim
from strandline.kafka.partition import Partition
from strandline.units import Nanos


class Progress:
    """A frontier for each partition that is ours, told as the offsets to commit.

    A partition that is assigned again starts a new generation, so a record of an earlier assignment that finishes late
    changes nothing. A record of a partition that is not ours is not ours to finish either: `done` ignores it.

    The thread that polls Kafka calls `assign`, `revoke` and `register`; all else may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._frontiers: dict[Partition, Frontier[int]] = {}
        self._owned: dict[Partition, int] = {}
        self._assignments = 0
        self._moved: dict[Partition, int] = {}

    def assign(self, partitions: Iterable[Partition]) -> int:
        """These partitions are ours from now on; the generation that begins for them, higher than any before."""
        with self._lock:
            self._assignments += 1
            for partition in partitions:
                self._frontiers.setdefault(partition, Frontier()).next_generation()
                self._moved.pop(partition, None)
                self._owned[partition] = self._assignments
            return self._assignments

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """These partitions are no longer ours. Commit before, if there is still time to."""
        with self._lock:
            for partition in partitions:
                self._owned.pop(partition, None)
                self._moved.pop(partition, None)
                if partition in self._frontiers:
                    # The frontier itself is kept: its count of tickets tells old ones from new ones.
                    self._frontiers[partition].next_generation()

    def register(self, partition: Partition, offset: int, now: Nanos) -> Claim:
        """Take a record into flight."""
        if partition not in self._owned:
            raise NotOurs(*partition)
        return Claim(partition, self._frontiers[partition].register(offset, now))

    def done(self, claim: Claim) -> None:
        """A record is safely delivered, or in its dead-letter place."""
        with self._lock:
            offset = self._frontiers[claim.partition].done(claim.ticket)
            if offset is not None:
                # Kafka commits the offset to read next.
                self._moved[claim.partition] = offset + 1

    def take_commits(self) -> dict[Partition, int]:
        """The offsets to commit that have moved since the last call."""
        with self._lock:
            moved, self._moved = self._moved, {}
            return moved

    def owned(self) -> dict[Partition, int]:
        """The partitions that are ours, each with its generation."""
        with self._lock:
            return dict(self._owned)

    def resume_at(self, partition: Partition, reached: int | None = None) -> int | None:
        """Where the next owner is to begin if we end now, or None while no record of this generation has come.

        Where the end of the partition was reached, that is it as long as nothing is in flight.
        """
        with self._lock:
            frontier = self._frontiers[partition]
            oldest = frontier.oldest(Nanos(0))
            if frontier.position is None:
                return reached if oldest is None else oldest.position
            at = frontier.position + 1
            # Markers of transactions take offsets too, and lie between the last record and the end.
            return at if oldest is not None or reached is None else max(at, reached)

    def beyond(self) -> int:
        """How many records lie beyond the frontiers: at most so many repeat when this process ends now."""
        with self._lock:
            return sum(self._frontiers[partition].beyond for partition in self._owned)

    def in_flight(self, partition: Partition) -> int:
        """How many records of a partition are unfinished."""
        return self._frontiers[partition].in_flight

    def oldest(self, partition: Partition, now: Nanos) -> Oldest[int] | None:
        """The record that holds a partition's commit back, and for how long already."""
        return self._frontiers[partition].oldest(now)
