"""One member of a replay: its share of the captured traffic, read no further ahead than needed, sent on time."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from opentelemetry.trace import Tracer

from strandline.clock import Clock, SystemClock
from strandline.core.pacing import Pace
from strandline.errors import BrokerUnreachable, StrandlineError
from strandline.kafka.events import Assigned, AtEnd, Event, Failed, Lost, Records, Revoked, Taken
from strandline.kafka.group import GroupMember
from strandline.kafka.partition import Partition
from strandline.kafka.producer import Publisher
from strandline.kafka.topics import ensure_topics
from strandline.observe import configured_tracer
from strandline.replay.beginning import find_span, reach, send_group_to, time_of, where_group_is
from strandline.replay.engine import Engine
from strandline.replay.gate import Gate
from strandline.replay.intake import Intake
from strandline.replay.output import Output
from strandline.replay.plan import Plan, Until
from strandline.replay.stopping import break_off, settle, stop
from strandline.replay.tracing import SCOPE, TracedEngine
from strandline.replay.work import Work
from strandline.units import Nanos, nanos
from strandline.wire.accumulator import FARTHEST, Accumulator
from strandline.wire.transactions import Cause

TICK = 0.1
REFERENCE_WITHIN = timedelta(seconds=5)
"""How long the first record of every partition is waited for, to find the earliest."""
REST = 0.002
REST_AT_MOST = Nanos(20_000_000)
"""How long reading rests for each batch of records while there is enough to send: what waits may wait for others."""
READ_AHEAD_KIB, WRITE_BEHIND_KIB = 8 << 10, 16 << 10
"""What Kafka's client reads ahead, and what of results waits in it: some seconds of work at full speed."""
GATHER_MS = 50
"""How long results wait for others to be written with. Nobody waits for them but the next commit."""
AT_ONCE = 100
"""How many records the polling thread takes at once: it keeps the interpreter for as long."""
HAND_OVER = timedelta(seconds=5)
"""What requests on their way have when their partition is wanted back."""
SAFE_WITHIN = timedelta(seconds=2)
"""What their results have then."""
SAFE_AT_END = timedelta(seconds=10)
"""What they have when the replay ends."""
SKEW = nanos(timedelta(hours=1))
"""How far the clock of a capture may be ahead of ours."""

log = logging.getLogger(__name__)


class Replay:
    """Runs until its end, until it is stopped, or until it cannot go on."""

    def __init__(self, plan: Plan, clock: Clock | None = None, tracer: Tracer | None = None) -> None:
        self.plan = plan
        self.clock = clock or SystemClock()
        self._tracer = tracer or configured_tracer(SCOPE)
        self.buried = 0
        self.was_assigned = False
        """Whether a partition has ever been ours."""
        self.has_read_all = False
        """Whether all partitions were ours when reading ended, each read to the end that it had at the start."""
        self._stopping = asyncio.Event()
        self._ends: dict[Partition, int] = {}
        self._opening: list[Taken] | None = [] if plan.reference is None else None
        """Records that wait for the reference; None once there is one."""
        self._opening_bytes = 0
        self._opening_ends: dict[Partition, int] = {}
        self._heard: set[Partition] = set()
        self._assigned_at = Nanos(0)
        self._reference: Pace | None = None
        self._may_end = not plan.is_led
        self._strays = 0

    @property
    def is_running(self) -> bool:
        """Whether reading has begun."""
        return hasattr(self, "gate")

    @property
    def read_to(self) -> dict[Partition, int]:
        """By partition, the offset behind all that has been put together to transactions. From any thread."""
        return dict(self.intake.positions)

    @property
    def is_topic_empty(self) -> bool:
        """Whether nothing had been written to the topic when the run began."""
        return not any(self._ends.values())

    @property
    def is_ready(self) -> bool:
        """Whether all is at hand that is sent first, of a replay that is led."""
        owned = self.gate.partitions if self.is_running else set()
        return bool(owned) and (owned <= self._heard or self._has_much)

    @property
    def has_begun(self) -> bool:
        """Whether there is a reference, and what waited for it is taken."""
        return self._opening is None

    @property
    def is_done(self) -> bool:
        """Whether all is sent that there was to send, as far as it is ours."""
        return self._is_at_end() and not self.engine.is_busy

    def begin(self, reference: Pace) -> None:
        """Here is the reference that a replay that is led waits for."""
        self._reference = self._reference or reference

    def finish(self) -> None:
        """End once all is done."""
        self._may_end = True

    def stop(self) -> None:
        """Come to an end in good order."""
        self._stopping.set()

    async def run(self) -> None:
        """Replay. Raises what makes it impossible to go on; what was done by then is committed."""
        plan = self.plan
        self.member = GroupMember(
            {"queued.max.messages.kbytes": READ_AHEAD_KIB, **plan.kafka},
            [plan.topic],
            poll_records=AT_ONCE,
            hand_over=HAND_OVER + SAFE_WITHIN + timedelta(seconds=1),
        )
        if plan.ends is None:
            span = await find_span(plan.kafka, plan.topic, plan.start)
            self._ends = dict(span.ends)
            if span.begin is not None:
                await send_group_to(plan.kafka, span.begin)
            else:
                await where_group_is(plan.kafka, span)
        else:
            self._ends = dict(plan.ends)
        _, results, dead_letters = plan.topics
        await ensure_topics(reach(plan.kafka), [results, dead_letters], like=plan.topic)
        self.engine = (Engine if self._tracer is None else TracedEngine)(
            plan.target,
            self._write,
            transform=plan.transform,
            policy=plan.policy,
            speed=plan.speed,
            reference=plan.reference,
            when_down=plan.when_down,
            limits=plan.limits,
            marks=plan.marks,
            owner=self.member,
            stalled_after=plan.stalled_after,
            clock=self.clock,
        )
        if self._tracer is not None and isinstance(self.engine, TracedEngine):
            self.engine.trace_to(self._tracer)
        try:
            self.output = self._open_output(results, dead_letters)
        except StrandlineError:
            self.engine.close()
            raise
        self.accumulator = Accumulator(
            self.engine,
            self.engine.spools.make,
            expire_after=nanos(plan.packet_timeout),
            keep=self.engine.keep,
            count=self.engine.spools.count,
        )
        self.intake = Intake(
            self.accumulator,
            self.member.progress,
            self.clock,
            topic=plan.topic,
            is_spread=len(self._ends) > 1,
            ends=self._ends if self._ends and plan.until is Until.LIVE else None,
            until=plan.until if isinstance(plan.until, datetime) else None,
            end=self._end,
            bury=self._bury,
        )
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._on_defect)
        await self.member.start()
        self.gate = Gate(self.member, self.engine, self.output, self.accumulator, nanos(plan.lookahead))
        try:
            await self._read()
            self.has_read_all = self._is_all_read()
            await self._drain()
            self.engine.check()
            if unsafe := self.output.unsafe:
                problem = f"{unsafe} results were not acknowledged in time; what they are about will be replayed again"
                raise BrokerUnreachable(str(plan.kafka.get("bootstrap.servers")), problem)
        finally:
            loop.set_exception_handler(before)
            # Before we leave the group: the next owner begins at once.
            self.engine.close()
            await self.member.stop()
            self.output.close()

    def _open_output(self, results: str, dead_letters: str) -> Output:
        plan = self.plan
        return Output(
            Publisher(
                {"linger.ms": GATHER_MS, "queue.buffering.max.kbytes": WRITE_BEHIND_KIB, **reach(plan.kafka)},
                report_every=timedelta(milliseconds=GATHER_MS),
            ),
            self.engine.fail,
            self.member.done,
            self.clock,
            topic=results,
            dead_letters=dead_letters,
            results=plan.results,
            tuples=plan.tuples,
            limits=plan.kept,
        )

    def _on_defect(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback is a defect of ours, and would else be a request that never ends."""
        loop.default_exception_handler(context)
        self.engine.fail(context.get("exception") or RuntimeError(context["message"]))

    async def _read(self) -> None:
        """Take what comes until there is an end to it and all is sent. Partitions come and go until then."""
        while not (self._stopping.is_set() or (self._may_end and self.is_done)):
            self.engine.check()
            try:
                async with asyncio.timeout(TICK):
                    event = await self.member.next()
            except TimeoutError:
                pass
            else:
                await self._handle(event)
            await self._tick()

    async def _drain(self) -> None:
        """Let what is on its way end. Whoever wants partitions back meanwhile is heard: the engine sends on."""
        # Nothing is taken any more, so nothing is to be read.
        self.member.pause(self.gate.partitions)
        draining = asyncio.create_task(self._give_up(list(self.gate.partitions), self.plan.drain, SAFE_AT_END))
        try:
            while not draining.done():
                hearing = asyncio.ensure_future(self.member.next())
                await asyncio.wait((draining, hearing), return_when=asyncio.FIRST_COMPLETED)
                if hearing.cancel():
                    continue
                match hearing.result():
                    case Assigned(partitions):
                        self.member.pause(partitions)
                    case Records() | AtEnd():
                        pass
                    case event:
                        await self._handle(event)
            await draining
        finally:
            draining.cancel()

    async def _handle(self, event: Event) -> None:
        match event:
            case Records(records):
                if self._opening is None:
                    await self._accept(records)
                else:
                    self._opening.extend(records)
                    self._opening_bytes += sum(len(taken.value or b"") for taken in records)
                    self._heard.update(taken.partition for taken in records)
            case AtEnd(partition, offset):
                self._heard.add(partition)
                self._at_end(partition, offset)
                if self._opening:
                    # Told once only, and records of the partition may wait here still.
                    self._opening_ends[partition] = offset
            case Assigned(partitions, _, at):
                self._assigned_at = self.clock.monotonic()
                self.was_assigned = self.was_assigned or bool(partitions)
                for partition in partitions:
                    self.engine.assign(partition.number, at)
                    self.gate.assign(partition)
            case Revoked(partitions):
                await self._give_up(partitions, HAND_OVER, SAFE_WITHIN)
                event.release()
            case Lost(partitions):
                break_off(self.engine, [partition.number for partition in partitions])
                self._forget(partitions)
            case Failed(error):
                raise error

    def _at_end(self, partition: Partition, offset: int) -> None:
        positions = self.intake.positions
        positions[partition] = max(offset, positions.get(partition, offset))
        self.gate.at_end(partition)

    async def _give_up(self, partitions: Sequence[Partition], within: timedelta, safe_within: timedelta) -> None:
        """Partitions go: nothing more of them is begun, and their connections are closed before anything is read."""
        numbers = [partition.number for partition in partitions]
        await stop(self.engine, numbers, within)
        self._forget(partitions)
        await settle(self.output, numbers, safe_within)

    def _forget(self, partitions: Sequence[Partition]) -> None:
        """Nothing of these partitions is worked on any more."""
        for partition in partitions:
            self.accumulator.drop(partition.number, Cause.REASSIGNED)
            again = self.engine.release(partition.number)
            if again is not None:
                log.warning("%s@%d was not done in time; what was sent from there on is sent again", partition, again)
            self.gate.revoke(partition)
            self.intake.positions.pop(partition, None)
            self._heard.discard(partition)
            self.intake.over.discard(partition)
            self._opening_ends.pop(partition, None)
        if self._opening is not None:
            self._opening = [taken for taken in self._opening if taken.partition not in partitions]

    async def _tick(self) -> None:
        if self._opening is not None:
            await self._find_reference()
        self.gate.tick()
        if self.plan.until is not Until.NEVER and not self._opening:
            for partition in self.gate.partitions - self.intake.over:
                if self._has_ended(partition):
                    self._end(partition)

    async def _find_reference(self) -> None:
        """Once every partition has been heard of, the earliest time of their first records is now."""
        if self.plan.is_led:
            await self._wait_for_reference()
            return
        owned = self.gate.partitions
        is_late = self.clock.monotonic() - self._assigned_at > nanos(REFERENCE_WITHIN)
        if not self._opening or not (owned <= self._heard or is_late or self._has_much):
            return
        # The first record that tells a time stands for its partition, one that can be if there is any.
        times: dict[Partition, Nanos] = {}
        latest = self.clock.wall() + SKEW
        for taken in self._opening:
            if times.get(taken.partition, latest + 1) > latest and (time := time_of(taken.value)) is not None:
                times[taken.partition] = min(time, times.get(taken.partition, time))
        if times:
            self.engine.timeline.begin(min(times.values()))
        await self._open()

    @property
    def _has_much(self) -> bool:
        return self._opening_bytes > self.plan.limits.memory

    async def _wait_for_reference(self) -> None:
        self.gate.is_held = self._reference is None and self._has_much
        if self._reference is not None:
            self.engine.timeline.refer(self._reference)
            await self._open()

    async def _open(self) -> None:
        """There is a reference: what has waited for it is taken."""
        opening, self._opening = self._opening or [], None
        await self._accept(opening)
        for partition, offset in self._opening_ends.items():
            self._at_end(partition, offset)

    async def _accept(self, records: Sequence[Taken]) -> None:
        latest = self._bound_times()
        await self._rest()
        taken = self.intake.take(records, 0, latest)
        while taken < len(records):
            await asyncio.sleep(0)
            taken = self.intake.take(records, taken, latest)
        self.gate.check({taken.partition for taken in records})
        self._tell_strays(records)

    async def _rest(self) -> None:
        """While there is enough to send, let it be sent."""
        until = self.clock.monotonic() + REST_AT_MOST
        while self.gate.has_enough and self.clock.monotonic() < until:
            await asyncio.sleep(REST)

    def _tell_strays(self, records: Sequence[Taken]) -> None:
        new, self._strays = self.accumulator.strays - self._strays, self.accumulator.strays
        if new:
            first, last = records[0], records[-1]
            place = f"{first.partition}@{first.offset} to {last.partition}@{last.offset}"
            what = "observations with a time far in the future are replayed with what lies before them in the log"
            log.warning("%s: %d %s; look at the clock of what captured them", place, new, what)

    def _bound_times(self) -> Nanos:
        """Nothing was captured in the future, by more than clocks differ; unless the whole log lies there."""
        latest, reference = Nanos(self.clock.wall() + SKEW), self.engine.timeline.reference
        if reference is None or reference > latest:
            return FARTHEST
        self.accumulator.bound(reference, latest)
        return latest

    def _bury(self, taken: Taken, problem: str) -> None:
        self.buried += 1
        self.output.bury(taken, problem)

    def _write(self, work: Work) -> None:
        self.output.write(work)

    def _has_ended(self, partition: Partition) -> bool:
        if isinstance(self.plan.until, datetime):
            return self.gate.has_passed(partition, self.plan.until)
        return self.intake.positions.get(partition, -1) >= self._ends.get(partition, 0)

    def _end(self, partition: Partition) -> None:
        """All is read of a partition that was to be: what is open stays as it is."""
        self.intake.over.add(partition)
        self.gate.end(partition)
        self.accumulator.drop(partition.number, Cause.END)

    def _is_all_read(self) -> bool:
        owned, positions = self.gate.partitions, self.intake.positions
        return owned >= self._ends.keys() and all(positions.get(p, -1) >= end for p, end in self._ends.items())

    def _is_at_end(self) -> bool:
        owned = self.gate.partitions
        return bool(owned) and owned <= self.intake.over
