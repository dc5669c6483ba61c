"""What a member of a consumer group is told, in the order in which it happened."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event as Flag

import msgspec

from strandline.kafka.claim import Claim
from strandline.kafka.partition import Partition
from strandline.units import Nanos


class Taken(msgspec.Struct, frozen=True, gc=False):
    """A record that is ours to finish: hand its claim to `Progress.done` when it is."""

    partition: Partition
    offset: int
    timestamp: int | None
    """Milliseconds since 1970, None for a record that has none."""
    key: bytes | None
    value: bytes | None
    claim: Claim
    generation: int


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one or more partitions, those of each by offset."""

    records: Sequence[Taken]


@dataclass(frozen=True, slots=True)
class Assigned:
    """These partitions are ours; all their records from now on have this generation."""

    partitions: Sequence[Partition]
    generation: int
    at: Nanos


@dataclass(frozen=True, slots=True)
class Revoked:
    """These partitions are to be given up: finish or drop what is in flight, then release them.

    What is done by then is committed before another member begins. The member does not wait for ever.
    """

    partitions: Sequence[Partition]
    released: Flag = field(default_factory=Flag, compare=False)

    def release(self) -> None:
        """Nothing of these partitions is worked on any more."""
        self.released.set()


@dataclass(frozen=True, slots=True)
class Lost:
    """These partitions are another member's already; nothing of them was or will be committed by us."""

    partitions: Sequence[Partition]


@dataclass(frozen=True, slots=True)
class AtEnd:
    """All that a partition has now has been read; the next record will have this offset or a higher one."""

    partition: Partition
    offset: int
    generation: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The member has ended, and says why."""

    error: Exception


Event = Records | Assigned | Revoked | Lost | AtEnd | Failed
