"""A replay by a fleet: members in long tasks of Spark, led from here.

The driver looks where the log begins and ends, starts one task a member, finds the reference that all share, and leads
them over a channel of its own (`replay/channel.py`) to the end. What is decided, and when, is in `replay/roster.py`.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Event, Thread
from typing import Any, TypeVar

from pyspark import SparkContext

from strandline.clock import SystemClock
from strandline.core.spark_master import check_master
from strandline.errors import KafkaError, StrandlineError, UsageError
from strandline.kafka.eviction import evict
from strandline.replay.beginning import Span, find_span, first_time, send_group_to, where_group_is
from strandline.replay.channel import Desk
from strandline.replay.messages import Reference, read_report
from strandline.replay.recipe import Recipe
from strandline.replay.replay import SAFE_AT_END
from strandline.replay.roster import Roster
from strandline.spark.member import Errand, run_member
from strandline.spark.places import Places, check_workers, local_slots
from strandline.spark.refusal import reason_in
from strandline.units import nanos

NAME = "strandline replay"
JOB = "strandline-fleet"
TICK = 0.25
LEAVE_WITHIN = timedelta(seconds=20)
"""What leaving the group and Spark's end of a task may take, beside draining."""

clock = SystemClock()
log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """What a fleet is to do, and where."""

    recipe: Recipe
    reference: Reference | None = None
    """Without it, the first request is due as soon as all members are ready."""
    workers: int | None = None
    """Without it, as many as the master runs tasks at a time, at most one a partition."""
    master: str = "local[*]"
    options: dict[str, str] = field(default_factory=dict)
    """Settings of Spark."""
    frozen_after: timedelta = timedelta(seconds=15)
    """A member whose loop stood still for so long is killed, and started anew."""
    silent_after: timedelta = timedelta(seconds=10)
    """Members that hear nothing of the driver for so long drain and end."""


class Fleet:
    """Runs until its end, until it is stopped, or until it cannot go on."""

    def __init__(self, plan: FleetPlan) -> None:
        self.plan = plan
        self.roster: Roster | None = None
        """Once there are to be members."""
        self._stopping = Event()
        self._stop_by: int | None = None
        self._settings = plan.recipe.plan()
        self._places = Places(NAME, plan.master, plan.options)
        self._evicting: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    @property
    def ends_within(self) -> timedelta:
        """How long after a stop all is over at the latest."""
        return self._settings.drain + SAFE_AT_END + LEAVE_WITHIN

    def stop(self) -> None:
        """Come to an end in good order."""
        self._stopping.set()
        self._stop_by = clock.monotonic() + nanos(self.ends_within)
        if self.roster is None:
            self._places.end_soon()
        else:
            self.roster.drain()

    async def run(self, show: Callable[[Roster], None]) -> None:
        """Replay; `show` is called a few times a second. Raises what makes it impossible to go on."""
        plan, settings = self.plan, self._settings
        slots = local_slots(check_master(plan.master))
        span = await find_span(settings.kafka, settings.topic, settings.start)
        if slots is not None:
            check_workers(plan.workers, slots=slots, partitions=len(span.ends), master=plan.master)
        places = self._places
        try:
            await _in_thread(places.open)
            found = await _in_thread(partial(places.slots, plan.workers, len(span.ends), self._stopping))
            if self._stopping.is_set():
                return
            workers = check_workers(plan.workers, slots=found, partitions=len(span.ends), master=plan.master)
            roster = await self._replay(workers, span, places, show)
        finally:
            await _in_thread(places.close)
        self._judge(roster)

    async def _replay(self, workers: int, span: Span, places: Places, show: Callable[[Roster], None]) -> Roster:
        """Have a desk for the members to report to, and lead them; how they stood at the end."""
        plan, kafka = self.plan, self._settings.kafka
        if span.begin is not None:
            await send_group_to(kafka, span.begin)
        marks = await where_group_is(kafka, span)
        roster = self.roster = Roster(workers, [partition.number for partition in span.ends], plan.reference)
        secret = secrets.token_bytes(32)
        desk = Desk(roster, secret, clock)
        errand = Errand(
            recipe=plan.recipe,
            ends=span.ends,
            host=places.host,
            port=await desk.open(places.bind),
            secret=secret,
            silent_after=plan.silent_after,
            frozen_after=plan.frozen_after,
        )
        looking = asyncio.ensure_future(first_time(kafka, marks, self._stopping))
        looking.add_done_callback(partial(self._looked, roster))
        try:
            await self._lead(roster, places, errand, show)
        finally:
            self._stopping.set()
            await asyncio.wait([looking])
            await desk.close()
        return roster

    def _looked(self, roster: Roster, looking: "asyncio.Future[Any]") -> None:
        if (error := looking.exception()) is not None:
            self._failure = error
            self.stop()
        elif (source := looking.result()) is not None:
            roster.begins_with(source)

    async def _lead(self, roster: Roster, places: Places, errand: Errand, show: Callable[[Roster], None]) -> None:
        job = asyncio.ensure_future(_in_thread(partial(_run_job, places, errand, roster.workers)))
        while not job.done():
            roster.tick(clock.monotonic(), clock.wall())
            show(roster)
            for member in roster.take_dead():
                task = asyncio.ensure_future(self._evict(member))
                self._evicting.add(task)
                task.add_done_callback(self._evicting.discard)
            if roster.failed is not None and not self._stopping.is_set():
                self.stop()
            if self._stopping.is_set() and roster.is_drained:
                places.end_soon()
                if roster.is_deserted:
                    # Who has not come yet holds nothing, and would come only to leave: Spark may have no place for it.
                    job.cancel()
                    return
            if self._stop_by is not None and clock.monotonic() > self._stop_by:
                job.cancel()
                raise StrandlineError(
                    f"members did not end within {self.ends_within.total_seconds():g} s and were cut off; what they "
                    "had not committed will be replayed again"
                )
            await asyncio.wait([job], timeout=TICK)
        for last in job.result():
            roster.report(read_report(last), clock.monotonic())

    async def _evict(self, member: str) -> None:
        """Its partitions are free at once, and not when the session of a dead member has run out."""
        try:
            await evict(self._settings.kafka, member)
        except KafkaError as error:
            log.warning("a member that is gone keeps its partitions until its session has run out: %s", error)

    def _judge(self, roster: Roster) -> None:
        if self._failure is not None:
            raise self._failure
        failed = roster.failed
        if failed is not None and failed.failure is not None:
            kind = UsageError if failed.failure.is_usage else StrandlineError
            raise kind(f"member {failed.task} on {failed.host}: {failed.failure.line}")


def _run_job(places: Places, errand: Errand, workers: int) -> list[bytes]:
    def run(context: SparkContext) -> list[bytes]:
        tasks: Any = context.parallelize(range(workers), workers)
        found: list[bytes] = tasks.mapPartitionsWithIndex(_Task(errand)).collect()
        return found

    try:
        return places.ask(run)
    except StrandlineError:
        raise
    except Exception as error:
        raise StrandlineError(f"Spark gave the run up: {reason_in(str(error)) or repr(error)}") from error


@dataclass(frozen=True)
class _Task:
    """What Spark calls for each task."""

    errand: Errand

    def __call__(self, number: int, _items: object) -> Any:
        return run_member(self.errand, number)


async def _in_thread(act: Callable[[], T]) -> T:
    """Have a thread do something that cannot be interrupted. It does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(give: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if answer.done() else give())

    def run() -> None:
        try:
            value = act()
        except BaseException as error:  # noqa: BLE001  (told to who waits)
            problem = error
            tell(lambda: answer.set_exception(problem))
        else:
            tell(lambda: answer.set_result(value))

    Thread(target=run, name="strandline-spark", daemon=True).start()
    return await answer
