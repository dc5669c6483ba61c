"""An accumulator whose connections can be taken out between two readings of the log, and put back."""

from collections.abc import Mapping

from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator, _Connection, _Lane, _Partition
from strandline.wire.standing import Standing
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Cause, ConnectionKey, Record


class ResumableAccumulator(Accumulator):
    """An accumulator whose connections can be taken out and put back."""

    is_going_on = False
    """Whether records are read again. What they have not made an end of then, they do not now."""

    def _pass(self, connection: _Connection, at: Nanos) -> None:
        if not self.is_going_on:
            super()._pass(connection, at)

    def keys(self, partition: int) -> list[ConnectionKey]:
        """The open connections, those of each node that are longest unseen first."""
        return [found.key for found in self._open(partition)]

    def times(self, partition: int) -> dict[str, Nanos]:
        """How far the time of each node has come."""
        found = self._partitions.get(partition)
        return {} if found is None else {node: lane.time for node, lane in found.lanes.items()}

    def standing(self, partition: int, key: ConnectionKey) -> Standing | None:
        """How a connection stands; None if it is not known or something of it is unfinished."""
        found = self._known(partition, key)
        if found is None or _is_unfinished(found):
            return None
        is_framed = found.framer is not None
        return Standing(found.index, found.seen, found.was_open, found.is_ignoring, found.is_opaque, is_framed)

    def is_unfinished(self, partition: int, key: ConnectionKey) -> bool:
        """Whether something of a connection is unfinished."""
        found = self._known(partition, key)
        return found is not None and _is_unfinished(found)

    def _known(self, partition: int, key: ConnectionKey) -> _Connection | None:
        found = self._partitions.get(partition)
        lane = None if found is None else found.lanes.get(key.node)
        return None if lane is None else lane.connections.get(key.connection)

    def put_back(self, partition: int, key: ConnectionKey, standing: Standing) -> None:
        """Have a connection stand as it did."""
        lane = self._partitions.setdefault(partition, _Partition()).lanes.setdefault(key.node, _Lane())
        connection = _Connection(key, lane, Record(partition, 0, 0, _let_go), TrafficStream())
        connection.index = standing.index
        connection.seen = standing.seen
        connection.was_open = standing.was_open
        connection.is_ignoring = standing.is_ignoring
        connection.is_opaque = standing.is_opaque
        if not standing.is_framed:
            connection.framer = None
        lane.connections[key.connection] = connection

    def arrange(
        self, partition: int, keys: list[ConnectionKey], time: Nanos | None, times: Mapping[str, Nanos]
    ) -> None:
        """Have connections in this order, and the times of the source at these."""
        found = self._partitions.setdefault(partition, _Partition())
        found.time = time
        for key in keys:
            found.lanes[key.node].connections.move_to_end(key.connection)
        # In the order that the nodes had. A state of an earlier version has no times of nodes.
        lanes = found.lanes
        found.lanes = {node: lanes.get(node) or _Lane() for node in {**times, **dict.fromkeys(lanes)}}
        for node, lane in found.lanes.items():
            lane.time = times.get(node, time or Nanos(0))

    def give_up(self, partition: int, key: ConnectionKey) -> Standing:
        """Tell what there is of a connection; how it stands when nothing more of it is to be told."""
        found = self._partitions[partition].lanes[key.node].connections[key.connection]
        self._end(found, found.seen, Cause.END)
        return Standing(found.index, found.seen, found.was_open, False, True, True)


def _is_unfinished(connection: _Connection) -> bool:
    return bool(connection.current or connection.unmarked or connection.awaiting)


def _let_go(record: Record) -> None:
    """Nothing is committed."""
