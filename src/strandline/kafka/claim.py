"""What the reader of a record holds until the record is finished."""

import msgspec

from strandline.core.frontier import Ticket
from strandline.kafka.partition import Partition


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A record in flight: what to hand back to `Progress.done`."""

    partition: Partition
    ticket: Ticket
