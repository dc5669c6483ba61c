"""One member of a replay: its share of the captured traffic, read no further ahead than needed, sent on time."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from opentelemetry.trace import Tracer

from strandline.clock import Clock, SystemClock
from strandline.core.pacing import Pace
from strandline.errors import BrokerUnreachable, OptionError, ScatteredCapture, StrandlineError
from strandline.kafka.events import Assigned, AtEnd, Event, Failed, Lost, Records, Revoked, Taken
from strandline.kafka.group import GroupMember
from strandline.kafka.partition import Partition
from strandline.kafka.producer import Publisher
from strandline.kafka.progress import Claim
from strandline.kafka.starts import TOPIC_NAME
from strandline.kafka.topics import ensure_topics
from strandline.observe import configured_tracer
from strandline.replay.beginning import From, find_span, reach, send_group_to, time_of
from strandline.replay.engine import Engine, Limits
from strandline.replay.gate import Gate
from strandline.replay.health import WhenDown
from strandline.replay.output import Output
from strandline.replay.results import WIDEST
from strandline.replay.results import Limits as ResultLimits
from strandline.replay.retries import DefaultRetry, RetryPolicy
from strandline.replay.session import Work
from strandline.replay.target import Target
from strandline.replay.tracing import SCOPE, TracedEngine
from strandline.replay.transforms import Transform
from strandline.units import Nanos, nanos
from strandline.wire.captured import Unreadable, is_behind, stream_of
from strandline.wire.traffic import TOPIC, when
from strandline.wire.transactions import FARTHEST, Accumulator, Cause, Record

TICK = 0.1
REFERENCE_WITHIN = timedelta(seconds=5)
"""How long the first record of every partition is waited for, to find the earliest."""
AT_A_TIME = Nanos(1_000_000)
"""How long records are taken before other things have their turn."""
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


class Until(Enum):
    """Where to end."""

    LIVE = "live"
    """When all that there was at the start has been replayed."""
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to replay, and how."""

    kafka: Mapping[str, object]
    """librdkafka's names, `group.id` among them."""
    target: Target
    transform: Transform
    topic: str = TOPIC
    results_topic: str = ""
    """Without it, the topic's name with `-results`."""
    dead_letters: str = ""
    """Without it, the topic's name with `-dead-letters`."""
    results: Path | None = None
    tuples: Path | None = None
    start: From | datetime = From.COMMITTED
    until: Until | datetime = Until.NEVER
    speed: Fraction = Fraction(1)
    reference: Pace | None = None
    """Which source time is which time of the monotonic clock, where several members share one."""
    ends: Mapping[Partition, int] | None = None
    """Where the log ended when the run began, where others have looked, and sent the group to the start."""
    is_led: bool = False
    """Whether somebody else gives the reference (`begin`) and says that all is done (`finish`)."""
    lookahead: timedelta = timedelta(seconds=400)
    """How far ahead of the clock is read, in source time."""
    packet_timeout: timedelta = timedelta(seconds=70)
    """After how long without a sign of it a source connection is taken for gone, in source time."""
    drain: timedelta = timedelta(seconds=10)
    """How long requests that are on their way have when the replay is stopped."""
    when_down: WhenDown = WhenDown.PAUSE
    policy: RetryPolicy = field(default_factory=DefaultRetry)
    limits: Limits = field(default_factory=Limits)
    marks: bool = True
    """Whether requests carry the header that names them."""
    kept: ResultLimits = WIDEST
    """How much of each part a result holds."""

    @property
    def topics(self) -> tuple[str, str, str]:
        """Where the capture is, where results go, and where dead letters go."""
        return (
            self.topic,
            self.results_topic or f"{self.topic}-results",
            self.dead_letters or f"{self.topic}-dead-letters",
        )

    def __post_init__(self) -> None:
        for name in self.topics:
            if not TOPIC_NAME.fullmatch(name):
                raise OptionError(f"'{name}' is not the name of a topic")
        if len(set(self.topics)) < len(self.topics):
            named = ", ".join(f"'{name}'" for name in self.topics)
            raise OptionError(f"the capture, its results and its dead letters need a topic each, not {named}")
        if self.kafka.get("group.id") == "":
            raise OptionError("a group needs a name; give one by --group")
        counts = {"concurrency": self.limits.concurrency, "memory": self.limits.memory}
        spans = {"packet_timeout": self.packet_timeout, "answer_within": self.limits.answer_within}
        for name, count in counts.items():
            if count < 1:
                raise OptionError(f"{name} is to be at least 1, not {count}")
        for name, span in spans.items():
            if span <= timedelta(0):
                raise OptionError(f"{name} is to be above 0, not {span.total_seconds():g} s")
        if min(self.drain, self.limits.quiescence) < timedelta(0):
            raise OptionError("drain and quiescence cannot be below 0")
        if self.lookahead <= self.packet_timeout:
            raise OptionError("lookahead is to exceed packet_timeout, else silent connections never come to an end")


class _Held(Record):
    """A record with the claim to be given back."""

    __slots__ = ("claim",)
    claim: Claim


class Replay:
    """Runs until its end, until it is stopped, or until it cannot go on."""

    def __init__(self, plan: Plan, clock: Clock | None = None, tracer: Tracer | None = None) -> None:
        self.plan = plan
        self.clock = clock or SystemClock()
        self._tracer = tracer or configured_tracer(SCOPE)
        self.buried = 0
        self._stopping = asyncio.Event()
        self._ends: dict[Partition, int] = {}
        self._positions: dict[Partition, int] = {}
        self._over: set[Partition] = set()
        """Partitions of which all is read that was to be."""
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
        return dict(self._positions)

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
        if plan.ends is None:
            span = await find_span(plan.kafka, plan.topic, plan.start)
            self._ends = dict(span.ends)
            if span.begin is not None:
                await send_group_to(plan.kafka, span.begin)
        else:
            self._ends = dict(plan.ends)
        _, results, dead_letters = plan.topics
        await ensure_topics(reach(plan.kafka), [results, dead_letters], like=plan.topic)
        self.member = GroupMember(
            plan.kafka,
            [plan.topic],
            poll_records=AT_ONCE,
            hand_over=HAND_OVER + SAFE_WITHIN + timedelta(seconds=1),
        )
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
        loop = asyncio.get_running_loop()
        before = loop.get_exception_handler()
        loop.set_exception_handler(self._on_defect)
        await self.member.start()
        self.gate = Gate(self.member, self.engine, self.output, self.accumulator, nanos(plan.lookahead))
        try:
            await self._read()
            await self._give_up(list(self.gate.partitions), plan.drain, SAFE_AT_END)
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
            Publisher({"linger.ms": GATHER_MS, **reach(plan.kafka)}, report_every=timedelta(milliseconds=GATHER_MS)),
            self.engine.fail,
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
                for partition in partitions:
                    self.engine.assign(partition.number, at)
                    self.gate.assign(partition)
            case Revoked(partitions):
                await self._give_up(partitions, HAND_OVER, SAFE_WITHIN)
                event.release()
            case Lost(partitions):
                await self._give_up(partitions, timedelta(0), timedelta(0))
            case Failed(error):
                raise error

    def _at_end(self, partition: Partition, offset: int) -> None:
        self._positions[partition] = max(offset, self._positions.get(partition, offset))
        self.gate.at_end(partition)

    async def _give_up(self, partitions: Sequence[Partition], within: timedelta, safe_within: timedelta) -> None:
        """Partitions go: nothing more of them is begun, and their connections are closed before anything is read."""
        numbers = [partition.number for partition in partitions]
        await self.engine.stop(numbers, within)
        for partition in partitions:
            self.accumulator.drop(partition.number, Cause.REASSIGNED)
            self.gate.revoke(partition)
            self._positions.pop(partition, None)
            self._heard.discard(partition)
            self._over.discard(partition)
            self._opening_ends.pop(partition, None)
        if self._opening is not None:
            self._opening = [taken for taken in self._opening if taken.partition not in partitions]
        if safe_within:
            await self.output.settle(numbers, safe_within)

    async def _tick(self) -> None:
        if self._opening is not None:
            await self._find_reference()
        self.gate.tick()
        if self.plan.until is not Until.NEVER and not self._opening:
            for partition in self.gate.partitions - self._over:
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
        monotonic, over, is_spread = self.clock.monotonic, self._over, len(self._ends) > 1
        until = self.plan.until if isinstance(self.plan.until, datetime) else None
        ends = self._ends if self.plan.until is Until.LIVE else {}
        latest = self._bound_times()
        since = monotonic()
        for taken in records:
            if monotonic() - since > AT_A_TIME:
                # Requests fall due while records are read.
                await asyncio.sleep(0)
                since = monotonic()
            partition = taken.partition
            if over and partition in over:
                continue
            if ends and taken.offset >= ends.get(partition, 0):
                # It came after the start, and may be due long after all that there was then.
                self._end(partition)
                continue
            try:
                stream = stream_of(taken.value)
            except Unreadable as problem:
                self._bury(taken, str(problem))
                continue
            if is_spread and taken.key != stream.connectionId.encode():
                raise ScatteredCapture(self.plan.topic, taken.partition, taken.offset)
            if until is not None and is_behind(stream, until) and when(stream.subStream[0]) <= latest:
                self._end(partition)
                continue
            record = _Held(partition.number, taken.offset, taken.generation, self._free)
            record.claim = taken.claim
            self.accumulator.accept(record, stream)
            self._positions[partition] = taken.offset + 1
        self.gate.check({taken.partition for taken in records})
        self._tell_strays(records)

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
        self._positions[taken.partition] = taken.offset + 1
        self.output.bury(taken, problem, lambda: self.member.done(taken.claim))

    def _write(self, work: Work) -> None:
        self.output.write(work)

    def _free(self, record: Record) -> None:
        assert isinstance(record, _Held)  # noqa: S101
        self.member.done(record.claim)

    def _has_ended(self, partition: Partition) -> bool:
        if isinstance(self.plan.until, datetime):
            return self.gate.has_passed(partition, self.plan.until)
        return self._positions.get(partition, -1) >= self._ends.get(partition, 0)

    def _end(self, partition: Partition) -> None:
        """All is read of a partition that was to be: what is open stays as it is."""
        self._over.add(partition)
        self.gate.end(partition)
        self.accumulator.drop(partition.number, Cause.END)

    def _is_at_end(self) -> bool:
        owned = self.gate.partitions
        return bool(owned) and owned <= self._over
