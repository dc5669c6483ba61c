"""What the members of a fleet and its driver tell each other, a line of JSON each.

A member tells all of how it stands, and the driver answers with all that it wants: a line that is lost on a broken
connection is made good by the next.
"""

from enum import Enum
from typing import Any

import msgspec

from strandline.core.pacing import Pace
from strandline.core.skew import Sample
from strandline.replay.status import NOT_BEGUN, Status
from strandline.units import Nanos

MAX_LINE = 1 << 20
"""Bytes. What a member tells grows with its partitions, a few hundred bytes each."""
MOST_NOTES = 20
LONGEST_NOTE = 500


class Order(Enum):
    """What a member is to do."""

    GO_ON = "go on"
    FINISH = "end once all that is yours is done"
    DRAIN = "end now, in good order"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a member has counted since it began."""

    requests: int = 0
    to_send: int = 0
    """Of these, those that wait to be sent: when the member is gone, others read them again."""
    sent: int = 0
    answered: int = 0
    failed: int = 0
    unsent: int = 0
    half: int = 0
    buried: int = 0
    verdicts: dict[str, int] = {}
    late: dict[int, int] = {}
    """The counters of a histogram of how late requests were sent, by their number."""
    late_total: int = 0
    late_most: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a member cannot go on."""

    line: str
    is_usage: bool
    """Whether it is the caller's doing."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a member stands."""

    task: int
    attempt: int
    """Rises with every restart, over all tasks."""
    host: str
    pid: int
    at: int
    """When it was written, by the member's clock on the wall."""
    is_ready: bool = False
    """Whether it has at hand what is sent first."""
    is_done: bool = False
    """Whether all is sent that was to be, of the partitions that are its own, and all results of it are safe."""
    is_last: bool = False
    group_member: str = ""
    """What the consumer group calls it; empty while it has had no partition."""
    owned: list[int] = []
    figures: Figures = Figures()
    status: Status = NOT_BEGUN
    stood: int = 0
    """For how many nanoseconds its clock has stood still, as the target could not be reached."""
    ahead: int = 0
    """By how much the driver's clock is ahead, in nanoseconds, and by how much that may be wrong."""
    doubt: int = 0
    notes: list[str] = []
    """What was logged since the report before, warnings and worse."""
    failure: Failure | None = None


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """Which time of the source is which time on the driver's clock."""

    source: int
    wall: int


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver wants, as the answer to a report."""

    order: Order
    reference: Reference | None
    stood: int
    """For how long the clock of any member has stood still: so has that of all."""
    asked: int
    """When the report was written, by the member's clock."""
    received: int
    """By the driver's clock, as the next."""
    answered: int

    def sample(self, returned: Nanos) -> Sample:
        """What this exchange tells about the clocks."""
        return Sample(Nanos(self.asked), Nanos(self.received), Nanos(self.answered), returned)


def local(reference: Reference, speed: Any, *, ahead: Nanos, wall: Nanos, monotonic: Nanos) -> Pace:
    """The reference by the monotonic clock of a member, whose wall clock the driver's is ahead of."""
    return Pace(Nanos(reference.source), Nanos(monotonic + (reference.wall - (wall + ahead))), speed)


encode = msgspec.json.Encoder().encode
read_report = msgspec.json.Decoder(Report).decode
read_orders = msgspec.json.Decoder(Orders).decode
