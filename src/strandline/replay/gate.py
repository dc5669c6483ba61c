"""How far ahead is read: no further than the time asked for, nor than memory allows; and what time it is at the source.

Partitions that are too far ahead are paused, each for itself. All are while whole requests that wait to be sent take
most of the memory. Half requests, and those that wait for the source's answer, do not count: only more reading brings
what they wait for. Nor is anything paused while a connection stands still until the source's answer is known. What is
read then goes to disk.

At the end of the log the source's time goes on with the clock, so that connections that went silent come to an end.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from strandline.kafka.group import GroupMember
from strandline.kafka.partition import Partition
from strandline.replay.engine import Engine
from strandline.replay.output import Output
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator

SHUT_ABOVE, REOPEN_BELOW = 0.5, 0.4
"""Of the bound on memory."""
AT_FULL_SPEED = 32 << 20
"""The bound where all is due at once: what is held beyond a second or two of work is sent no sooner for it."""
ENOUGH, ENOUGH_RESULTS = 2 << 20, 4_000
"""What is at hand at full speed before reading takes a rest, in bytes that wait to be sent and in results that are not
safe yet: the less is held, the less there is to look after."""
SETTLE_AFTER = Nanos(200_000_000)
"""A complete request without a mark counts when nothing followed it for so long at the end of the log."""


@dataclass(slots=True)
class _Reading:
    is_paused: bool = False
    is_over: bool = False
    end_since: Nanos | None = None
    """Since when it is at the end of the log."""
    end_time: Nanos | None = None
    """The source's time then."""


class Gate:
    """Pauses and resumes partitions."""

    def __init__(
        self, member: GroupMember, engine: Engine, output: Output, accumulator: Accumulator, lookahead: Nanos
    ) -> None:
        self._member = member
        self._engine = engine
        self._output = output
        self._accumulator = accumulator
        self._lookahead = lookahead
        self._bound = engine.spools.max_bytes
        self._is_free = engine.timeline.is_free
        if self._is_free:
            self._bound = min(self._bound, AT_FULL_SPEED)
        self._readings: dict[Partition, _Reading] = {}
        self._is_shut = False
        self.is_held = False
        """Whether nothing is to be read for now, whatever else."""

    @property
    def partitions(self) -> set[Partition]:
        """The partitions that are ours."""
        return set(self._readings)

    def assign(self, partition: Partition) -> None:
        """A partition has become ours."""
        self._readings[partition] = _Reading()

    def revoke(self, partition: Partition) -> None:
        """A partition is no longer ours."""
        self._readings.pop(partition, None)

    def end(self, partition: Partition) -> None:
        """No more is to be read of a partition."""
        self._readings[partition].is_over = True

    def at_end(self, partition: Partition) -> None:
        """There is nothing more to read of a partition for now."""
        reading = self._readings.get(partition)
        if reading is not None and reading.end_since is None:
            reading.end_since = self._engine.clock.monotonic()
            reading.end_time = self._accumulator.time(partition.number)

    @property
    def has_enough(self) -> bool:
        """Whether so much is at hand, all of it due, that nothing is sent sooner for more."""
        if not self._is_free or self._engine.is_waiting_for_source:
            return False
        return self._engine.waiting_bytes > ENOUGH or self._output.unsafe > ENOUGH_RESULTS

    def check(self, partitions: Iterable[Partition]) -> None:
        """Records of these partitions were taken."""
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is not None:
                reading.end_since = reading.end_time = None
        self.tick()

    def tick(self) -> None:
        """Some time has passed."""
        now = self._engine.clock.monotonic()
        for partition, reading in self._readings.items():
            if reading.end_since is not None and now - reading.end_since > SETTLE_AFTER:
                self._accumulator.settle(partition.number)
                if reading.end_time is not None:
                    self._accumulator.advance(partition.number, Nanos(reading.end_time + now - reading.end_since))
        self._look_at_memory()
        for partition, reading in self._readings.items():
            is_wanted = not (reading.is_over or self.is_held or self._is_shut or self._is_ahead(partition))
            if is_wanted == reading.is_paused:
                reading.is_paused = not is_wanted
                (self._member.resume if is_wanted else self._member.pause)([partition])

    def _look_at_memory(self) -> None:
        engine = self._engine
        share = engine.waiting_bytes / self._bound
        if engine.is_waiting_for_source:
            self._is_shut = False
        elif self._output.is_behind or share > SHUT_ABOVE:
            self._is_shut = True
        elif share < REOPEN_BELOW:
            self._is_shut = False

    def _is_ahead(self, partition: Partition) -> bool:
        time, reached = self._accumulator.time(partition.number), self._engine.timeline.reached()
        return time is not None and reached is not None and time > reached + self._lookahead

    def has_passed(self, partition: Partition, moment: datetime) -> bool:
        """Whether the source's time has come to a moment in a partition."""
        time = self._accumulator.time(partition.number)
        return time is not None and time / 1e9 >= moment.timestamp()
