"""One member of a fleet, in a Python process of Spark: a long task that replays, reports, and obeys the driver."""

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import uvloop
from pyspark import TaskContext

from strandline.clock import SystemClock
from strandline.errors import StrandlineError, UsageError
from strandline.kafka.partition import Partition
from strandline.replay.channel import Link
from strandline.replay.messages import (
    LONGEST_NOTE,
    MOST_NOTES,
    Failure,
    Figures,
    Order,
    Orders,
    Report,
    encode,
    local,
)
from strandline.replay.process import prepare_process
from strandline.replay.recipe import Recipe
from strandline.replay.replay import Replay
from strandline.replay.watch import Watch
from strandline.spark.supervised import supervised
from strandline.units import Nanos, nanos

BEAT = 0.2
DETAIL_BELOW = 5_000
"""With more requests than these waiting, what the oldest one waits for is not looked up for every report."""
LAST_WORD_WITHIN = 3.0

clock = SystemClock()
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What every member is given. It goes with the task, so a task that is started anew has the same."""

    recipe: Recipe
    ends: Mapping[Partition, int]
    host: str
    port: int
    secret: bytes = field(repr=False)
    silent_after: timedelta
    """Without a word of the driver for so long, the member drains and ends."""
    frozen_after: timedelta


def run_member(errand: Errand, task: int) -> Iterator[bytes]:
    """Replay until the driver says that it is over; the last report."""
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()
    with supervised(errand.frozen_after) as pipe:
        yield encode(uvloop.run(Membership(errand, task, attempt).run(pipe)))


class Membership:
    """One attempt of one task."""

    def __init__(self, errand: Errand, task: int, attempt: int) -> None:
        self._errand = errand
        self._task, self._attempt = task, attempt
        self._notes = Notes()
        self._replay: Replay | None = None
        self._watch: Watch | None = None
        self._failure: Failure | None = None
        self._order = Order.GO_ON
        self._is_over = False

    async def run(self, pipe: int) -> Report:
        """Replay; what stands in the way is in the report, unless it is a defect."""
        errand = self._errand
        logging.getLogger("strandline").addHandler(self._notes)
        loop = asyncio.get_running_loop()
        # The first is what Spark's daemon sends when the executor is gone. The terminal's is for the driver.
        for number in (signal.SIGHUP, signal.SIGTERM):
            loop.add_signal_handler(number, self._drain)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        beating = asyncio.ensure_future(_beat(pipe))
        self._link = Link(errand.host, errand.port, errand.secret, report=self._report, obey=self._obey, clock=clock)
        linked = asyncio.ensure_future(self._stay_linked())
        try:
            await self._serve()
        except StrandlineError as error:
            self._failure = Failure(line=str(error), is_usage=isinstance(error, UsageError))
        finally:
            self._is_over = True
            self._link.end()
            with suppress(TimeoutError):
                await asyncio.wait_for(linked, LAST_WORD_WITHIN)
            beating.cancel()
            logging.getLogger("strandline").removeHandler(self._notes)
        return self._report()

    async def _serve(self) -> None:
        errand = self._errand
        plan = errand.recipe.plan(ends=errand.ends, is_led=True, **self._files())
        prepare_process()
        self._replay = Replay(plan)
        self._watch = Watch(self._replay)
        self._act()
        await self._replay.run()

    def _files(self) -> dict[str, Any]:
        """Each member writes files of its own."""
        named = {name: self._errand.recipe.rest.get(name) for name in ("results", "tuples")}
        return {
            name: path.with_name(f"{path.stem}.{self._task}{path.suffix}")
            for name, path in named.items()
            if isinstance(path, Path)
        }

    # Orders.

    async def _stay_linked(self) -> None:
        await self._link.run(nanos(self._errand.silent_after))
        if not self._is_over:
            log.warning("nothing was heard of the driver for %s: ending in good order", self._errand.silent_after)
            self._drain()

    def _obey(self, orders: Orders) -> None:
        if orders.order is not Order.GO_ON:
            self._order = orders.order
        if orders.reference is not None and self._replay is not None:
            ahead = self._link.skew.ahead
            speed = self._replay.plan.speed
            self._replay.begin(
                local(orders.reference, speed, ahead=ahead, wall=clock.wall(), monotonic=clock.monotonic())
            )
            if self._replay.is_running and self._replay.has_begun:
                self._replay.engine.timeline.follow(Nanos(orders.stood))
        self._act()

    def _drain(self) -> None:
        self._order = Order.DRAIN
        self._act()

    def _act(self) -> None:
        if self._replay is not None:
            if self._order is Order.FINISH:
                self._replay.finish()
            elif self._order is Order.DRAIN:
                self._replay.stop()

    # Reports.

    def _report(self) -> Report:
        best = self._link.skew.best
        told: dict[str, Any] = {}
        run, watch = self._replay, self._watch
        if run is not None and watch is not None and run.is_running:
            watch.sample()
            told = {
                "is_ready": run.is_ready,
                "stood": run.engine.timeline.stood,
                "is_done": run.is_done and not run.output.unsafe,
                "group_member": run.member.id,
                "owned": sorted(partition.number for partition in run.gate.partitions),
                "figures": figures_of(run),
                "status": watch.status(with_detail=run.engine.waiting < DETAIL_BELOW),
            }
        return Report(
            task=self._task,
            attempt=self._attempt,
            host=socket.gethostname(),
            pid=os.getpid(),
            at=clock.wall(),
            is_last=self._is_over,
            ahead=0 if best is None else best.ahead,
            doubt=0 if best is None else best.doubt,
            notes=self._notes.take(),
            failure=self._failure,
            **told,
        )


def figures_of(run: Replay) -> Figures:
    """What a replay has counted."""
    counters, late = run.engine.counters, run.engine.counters.lateness
    return Figures(
        requests=counters.ours,
        to_send=counters.to_send,
        sent=counters.sent,
        answered=counters.answered,
        failed=counters.failed,
        unsent=counters.unsent,
        half=counters.half,
        buried=run.buried,
        verdicts=dict(run.output.verdicts),
        late=late.sparse(),
        late_total=late.total,
        late_most=late.most,
    )


async def _beat(pipe: int) -> None:
    """Give signs of life for as long as the loop runs."""
    while True:
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(pipe, b".")
        await asyncio.sleep(BEAT)


class Notes(logging.Handler):
    """Keeps the latest warnings for the next report."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._notes: deque[str] = deque(maxlen=MOST_NOTES)

    def emit(self, record: logging.LogRecord) -> None:
        """One more."""
        self._notes.append(record.getMessage()[:LONGEST_NOTE])

    def take(self) -> list[str]:
        """What has not been told yet."""
        notes = []
        while self._notes:
            notes.append(self._notes.popleft())
        return notes
