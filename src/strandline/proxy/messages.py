"""What the processes of one proxy say to each other, beside what any crew and its workers do."""

import msgspec

from strandline.workers.messages import MOST_LINE_BYTES, Failed, Ready, Stop

# What is known of all clusters has to fit into the line that a worker begins with, in which it takes a third more.
MOST_KNOWN = MOST_LINE_BYTES // 2


class Counted(msgspec.Struct, frozen=True):
    """What was counted since the start, each with its labels before it."""

    requests: list[tuple[str, int, int, int]]
    failures: list[tuple[str, str, int]]
    bytes_in: dict[str, int]
    bytes_out: dict[str, int]


class ClusterState(msgspec.Struct, frozen=True):
    """How a cluster is, as one process finds it."""

    address: str
    is_up: bool
    brokers: int


class State(msgspec.Struct, frozen=True, tag="state"):
    """How a process is, or all together; comes every moment."""

    connections: int
    clusters: dict[str, ClusterState]
    counted: Counted
    workers: int = 1
    """How many processes this is of."""


class Known(msgspec.Struct, frozen=True, tag="known"):
    """From a worker: a cluster has told of other topics than before."""

    cluster: str
    topics: bytes
    """As it told of them, compressed."""


class Reloaded(msgspec.Struct, frozen=True, tag="reloaded"):
    """From a worker: it serves by what a Reload said."""

    number: int


class Start(msgspec.Struct, frozen=True, tag="start"):
    """All that a worker has to know."""

    number: int
    config: bytes
    """What the configuration's file held when it was last read, once for all."""
    file: str
    known: dict[str, bytes]
    """The topics of each cluster, as some worker last said: it may be down now."""


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """To a worker: the file holds something else now, which can be used."""

    number: int
    config: bytes


FromWorker = Ready | Failed | State | Known | Reloaded
ToWorker = Start | Reload | Stop

from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
to_worker: msgspec.json.Decoder[ToWorker] = msgspec.json.Decoder(ToWorker)
