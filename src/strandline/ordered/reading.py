"""Reads partitions from all their leaders at once and feeds their rows to an ordering, no faster than it takes them.

While the batches of one answer are unpacked in a thread, the next fetch is on its way. Where a partition is read on is
known from the headers of its batches alone.

How large records are once they are unpacked is foreseen. Where that was too little, the rows for which there is no room
are put back, and are fetched again when there is. How large an answer is, it says itself before it comes; one for which
there is no room waits at its broker while another such one is here. So what is held stays within the buffer, and beyond
it comes one answer at a time, in all phases and from however many leaders.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from strandline.clock import Clock
from strandline.core.foresight import Foresight
from strandline.core.ordering import NO_END, Ordering
from strandline.core.retry import Failure, GiveUp, decide
from strandline.errors import (
    BrokerRefused,
    BrokerUnreachable,
    CorruptBatch,
    KafkaError,
    Moved,
    OffsetOutOfRange,
    OptionError,
)
from strandline.kafka.cluster import AGAIN, EARLIEST, LATEST, MOVED, PATIENCE, Cluster, Fetched, Isolation
from strandline.kafka.partition import Partition
from strandline.threads import aside
from strandline.units import Nanos, nanos
from strandline.wire.fetched import Scanned, rows_within, scan
from strandline.wire.records import Columns

MAX_WAIT = timedelta(milliseconds=500)
LEAST_OF_A_PARTITION = 64 << 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets that could not be read, from `first` up to, and without, `end`."""

    partition: Partition
    first: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"offsets {self.first} to {self.end - 1} of {self.partition} are lost: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rules:
    """What to do with what cannot be read, and whose records to read."""

    isolation: Isolation
    skip_corrupt: bool
    skip_missing: bool


def scan_fetched(fetched: Fetched, end: int, rules: Rules) -> Scanned:
    """Look through records that came, up to an end; what is wrong with them is told with the partition's name."""
    partition = fetched.partition
    try:
        scanned = scan(fetched.records, fetched.asked, end, fetched.aborted, skip_corrupt=rules.skip_corrupt)
    except CorruptBatch as error:
        raise CorruptBatch(error.problem, error.offset, error.next_offset, partition) from None
    if scanned.position == fetched.asked:
        # A broker that has no room for a whole batch sends nothing of it.
        raise CorruptBatch(f"{len(fetched.records)} bytes came, and no whole batch", fetched.asked, partition=partition)
    return scanned


@dataclass(frozen=True, slots=True)
class _Ask:
    """A fetch to be made of a leader."""

    wanted: Mapping[Partition, int]
    max_bytes: int
    partition_bytes: int
    reserved: int
    """What is kept of the buffer for the answer."""


@dataclass(slots=True)
class _Coming:
    """An answer on its way: what is kept of the buffer for it, and whether it is beyond that."""

    bytes: int
    is_beyond: bool = False


@dataclass(slots=True)
class _Trouble:
    since: Nanos
    last: Nanos
    attempts: int = 0


class Reading:
    """Owns the tasks that read. `changed` is set, and replaced by a new one, whenever rows or a failure have come."""

    def __init__(
        self, cluster: Cluster, ordering: Ordering[Partition], ends: Mapping[Partition, int], rules: Rules, clock: Clock
    ) -> None:
        self.chunks = {key: deque[Columns]() for key in ordering.keys}
        self.losses: list[Loss] = []
        self.failure: BaseException | None = None
        self.changed = asyncio.Event()
        self._cluster = cluster
        self._ordering = ordering
        self._ends: Mapping[Partition, int] | None = ends
        self._rules = rules
        self._clock = clock
        self._next = {key: ordering.position(key) for key in ordering.keys}
        self._busy: dict[Partition, int] = dict.fromkeys(ordering.keys, 0)
        self._on_the_way = 0
        self._foresight = Foresight(ordering.buffer_bytes)
        self._is_beyond = False
        """Whether an answer that is beyond the buffer is coming in or being unpacked."""
        self._trouble: dict[Partition, _Trouble] = {}
        self._to_unpack: asyncio.Queue[tuple[Partition, Scanned, int]] = asyncio.Queue()
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Begin to read."""
        self.run("unpack", self._unpack())
        self._read_from_all()

    async def stop(self) -> None:
        """End all tasks; whoever still polls is told."""
        self.failure = self.failure or OptionError("the consumer is closed")
        self._notify()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def read_beyond_ends(self) -> None:
        """Read on behind the ends."""
        self._ends = None
        self._notify()

    def add(self, partition: Partition) -> None:
        """Read one more partition, which the ordering has and whose leader is known."""
        self.chunks[partition] = deque()
        self._next[partition] = self._ordering.position(partition)
        self._busy[partition] = 0
        self._read_from_all()
        self._notify()

    def wants(self, partition: Partition) -> bool:
        """Whether a partition is read on at the moment, or held back because others are behind."""
        return partition in self._ordering.to_read(self._on_the_way) or partition in self._ordering.awaited()

    def taken(self) -> None:
        """Tell that rows were taken, so that there is room again."""
        self._notify()

    def run(self, name: object, work: Coroutine[Any, Any, None]) -> None:
        """Run a task for as long as it is read; where it fails, the reading has failed."""
        task = self._tasks[name] = asyncio.create_task(work)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()
            self._notify()

    def _notify(self) -> None:
        before, self.changed = self.changed, asyncio.Event()
        before.set()

    def _read_from_all(self) -> None:
        nodes = set(self._cluster.nodes)
        self._foresight.leaders = len(nodes)
        for node in nodes:
            if node not in self._tasks:
                self.run(node, self._read_from(node))

    async def _read_from(self, node: int) -> None:
        while True:
            changed = self.changed
            if ask := self._within(node) or self._beyond(node):
                await self._read(node, ask)
            else:
                await changed.wait()

    def _within(self, node: int) -> _Ask | None:
        """What to fetch while there is room for it."""
        max_bytes = self._foresight.to_ask()
        reserved = self._foresight.unpacked(max_bytes)
        to_read = self._ordering.to_read(self._on_the_way + reserved)
        # What is needed is fetched once ahead.
        wanted = self._of_leader(node, [partition for partition in to_read if self._busy[partition] <= 1])
        if not wanted:
            return None
        return _Ask(wanted, max_bytes, max(LEAST_OF_A_PARTITION, max_bytes // len(wanted)), reserved)

    def _beyond(self, node: int) -> _Ask | None:
        """What to fetch although there is no room for it: little, of the partitions that all others wait for."""
        max_bytes = self._foresight.to_ask()
        if self._ordering.to_read(self._on_the_way + self._foresight.unpacked(max_bytes)):
            return None
        awaited = self._ordering.awaited()
        wanted = self._of_leader(node, [partition for partition in awaited if not self._busy[partition]])
        return _Ask(wanted, max_bytes, self._foresight.packed(self._ordering.share), 0) if wanted else None

    def _of_leader(self, node: int, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {
            partition: self._next[partition]
            for partition in partitions
            if self._cluster.leader(partition) == node and self._next[partition] < self._end(partition)
        }

    async def _read(self, node: int, ask: _Ask) -> None:
        """Fetch once, and hand on what comes. An answer beyond the buffer is unpacked before the next is asked for."""
        coming = _Coming(ask.reserved)
        self._on_the_way += coming.bytes
        try:
            await self._fetch(node, ask, coming)
            while coming.is_beyond and any(self._busy[partition] for partition in ask.wanted):
                await self.changed.wait()
        finally:
            self._make_way(coming)

    async def _fetch(self, node: int, ask: _Ask, coming: _Coming) -> None:
        try:
            answers = await self._cluster.fetch(
                node,
                ask.wanted,
                self._rules.isolation,
                max_bytes=ask.max_bytes,
                partition_bytes=ask.partition_bytes,
                max_wait=MAX_WAIT,
                admit=partial(self._admit, coming),
            )
        except (BrokerUnreachable, Moved) as error:
            self._make_way(coming)
            await self._look_again(ask.wanted, error)
            return
        finally:
            self._on_the_way -= coming.bytes
            self._notify()
        self._foresight.came()
        moved = [fetched for fetched in answers if not await self._take(fetched)]
        if moved:
            wanted = {fetched.partition: fetched.asked for fetched in moved}
            await self._look_again(wanted, Moved(moved[0].partition, moved[0].error.name))

    async def _admit(self, coming: _Coming, size: int) -> None:
        """Wait until there is room for an answer of so many bytes, or until it is the only one beyond the buffer."""
        more = max(0, size - coming.bytes)
        while more and self._ordering.spare(self._on_the_way + more) < 0:
            if not self._is_beyond:
                self._is_beyond = coming.is_beyond = True
                break
            await self.changed.wait()
        coming.bytes += more
        self._on_the_way += more

    def _make_way(self, coming: _Coming) -> None:
        """Let another answer come in beyond the buffer, where this one has."""
        if coming.is_beyond:
            self._is_beyond = coming.is_beyond = False
            self._notify()

    async def _take(self, fetched: Fetched) -> bool:
        """Take what came of a partition; False when its leader must be looked for."""
        partition = fetched.partition
        if fetched.asked != self._next[partition]:
            return True  # another leader has answered first, or what came before was put back
        if fetched.error in MOVED:
            return False
        self._trouble.pop(partition, None)
        if fetched.error is ErrorCode.offset_out_of_range:
            await self._pass_over_missing(partition, fetched.asked)
        elif fetched.error is not ErrorCode.none:
            raise BrokerRefused(fetched.error.name, partition)
        elif fetched.records:
            self._hand_on(partition, scan_fetched(fetched, self._end(partition), self._rules))
        return True

    def _hand_on(self, partition: Partition, scanned: Scanned) -> None:
        self._next[partition] = scanned.position
        self._busy[partition] += 1
        expected = self._foresight.unpacked(scanned.data.nbytes)
        self._on_the_way += expected
        self._to_unpack.put_nowait((partition, scanned, expected))

    def _end(self, partition: Partition) -> int:
        return NO_END if self._ends is None else self._ends[partition]

    async def _unpack(self) -> None:
        while True:
            await self._unpack_next(*await self._to_unpack.get())

    async def _unpack_next(self, partition: Partition, scanned: Scanned, expected: int) -> None:
        if scanned.first == self._ordering.position(partition):  # else what came before was put back
            await self._feed(partition, scanned, self._on_the_way - expected)
        self._on_the_way -= expected
        self._busy[partition] -= 1
        self._notify()

    async def _feed(self, partition: Partition, scanned: Scanned, on_the_way: int) -> None:
        """Unpack what there is room for, and read on behind it."""
        room = self._ordering.room(partition, on_the_way)
        try:
            taken = await aside(partial(rows_within, scanned, room, skip_corrupt=self._rules.skip_corrupt))
        except CorruptBatch as error:
            raise CorruptBatch(error.problem, error.offset, error.next_offset, partition) from None
        found = taken.rows
        self._foresight.grew(taken.growth)
        if found.nbytes > room and len(found) and not self._ordering.must_take(partition, int(found.timestamp[0])):
            taken = taken.put_back()
            found = taken.rows
        for fault in scanned.corrupt:
            if fault.offset < taken.position:
                self._lose(Loss(partition, fault.offset, fault.next_offset, f"the batch is corrupt: {fault.problem}"))
        if len(found):
            self.chunks[partition].append(found)
        self._ordering.feed(partition, found.timestamp, found.nbytes, taken.position, self._clock.monotonic())
        if taken.left is not None:
            self._ordering.foresee(partition, *taken.left)
        if taken.position < scanned.position:
            self._next[partition] = taken.position

    async def _pass_over_missing(self, partition: Partition, asked: int) -> None:
        """Go to the oldest offset that there is, or say that the one asked for is not there."""
        if self._busy[partition]:
            return  # what comes before may be put back: then more is missing
        ends = await self._cluster.offsets({partition: LATEST}, Isolation.READ_UNCOMMITTED)
        starts = await self._cluster.offsets({partition: EARLIEST}, Isolation.READ_UNCOMMITTED)
        earliest, latest = starts[partition].offset, ends[partition].offset
        if earliest <= asked <= latest:
            return  # it moved while we looked
        if not self._rules.skip_missing or asked > latest:
            raise OffsetOutOfRange(partition, asked=asked, earliest=earliest, latest=latest)
        end = min(earliest, self._end(partition))
        self._lose(Loss(partition, asked, end, "the broker has deleted them"))
        self._hand_on(partition, replace(scan(b"", asked, end), position=end))

    def _lose(self, loss: Loss) -> None:
        self.losses.append(loss)
        log.warning("%s", loss)

    async def _look_again(self, wanted: Mapping[Partition, int], error: KafkaError) -> None:
        """Wait a little and ask who leads what; raise the error when that has not helped for long."""
        now = self._clock.monotonic()
        for partition in wanted:
            trouble = self._trouble.setdefault(partition, _Trouble(now, now))
            if now - trouble.last > nanos(PATIENCE):
                trouble = self._trouble[partition] = _Trouble(now, now)  # another one, long after
            trouble.last = now
            trouble.attempts += 1
        troubles = [self._trouble[partition] for partition in wanted]
        worst = min(troubles, key=lambda trouble: trouble.since)
        elapsed = Nanos(now - worst.since)
        draw = random.random()  # noqa: S311  (spreads retries, keeps no secret)
        answer = decide(AGAIN, Failure.TRANSIENT, attempt=worst.attempts, elapsed=elapsed, draw=draw)
        if isinstance(answer, GiveUp):
            error.add_note(f"tried for {elapsed / 1e9:.0f} s")
            raise error
        if worst.attempts == 1:
            log.warning("%s; trying again", error)
        await asyncio.sleep(answer.delay / 1e9)
        try:
            await self._cluster.refresh()
        except (BrokerUnreachable, Moved) as refreshing:
            log.debug("%s", refreshing)
        self._read_from_all()
        self._notify()
