"""What the driver of a fleet knows of its members, and what it wants of them. Pure: reports in, orders out.

A task that is restarted comes back as a later attempt. The latest attempt of each task is its member; what earlier ones
had counted by their last report still counts. All share one reference. It is set once, when every member has at hand
what it sends first, and holds for the run: who comes later gets the same. While the clock of one stands still, because
the target cannot be reached, that of all does.

Reports come on one thread; what follows from them may be asked on another.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from datetime import datetime

from strandline.core.histogram import Histogram
from strandline.replay.messages import Figures, Order, Reference, Report
from strandline.replay.status import PartitionStatus, Status
from strandline.units import Nanos

LEAD = Nanos(1_000_000_000)
"""How long before its time the reference is set: members hear of it by their next report."""
READY_WITHIN = Nanos(30_000_000_000)
"""How long after the first report all members are waited for."""
SILENT_AFTER = Nanos(5_000_000_000)
"""Who has not reported for so long is taken for gone when requests are counted; members report twice a second."""
RATE_OVER = Nanos(10_000_000_000)
MISMATCHES = ("status_differs", "no_target")


class Roster:
    """The members of one run."""

    def __init__(self, workers: int, partitions: Collection[int], reference: Reference | None = None) -> None:
        self.workers = workers
        self.reference = reference
        self._partitions = frozenset(partitions)
        self._latest: dict[int, Report] = {}
        self._heard: dict[int, Nanos] = {}
        self._now = Nanos(0)
        self._earlier: list[Report] = []
        self._source: Nanos | None = None
        self._first: Nanos | None = None
        self._order = Order.GO_ON
        self._dead: list[str] = []
        self.stood = 0
        """For how long the clock of the fleet has stood still, in nanoseconds."""
        self._sent: deque[tuple[Nanos, int]] = deque()

    # What happens.

    def report(self, report: Report, now: Nanos) -> None:
        """A member tells how it stands; `now` is by the monotonic clock."""
        known = self._latest.get(report.task)
        if known is not None and report.attempt < known.attempt:
            return
        if known is not None and known.is_last and report.attempt == known.attempt:
            return
        if known is not None and report.attempt > known.attempt:
            self._earlier.append(known)
            if known.group_member and not known.is_last:
                self._dead.append(known.group_member)
        self._heard[report.task] = self._now = now
        self._latest[report.task] = report
        self.stood = max(self.stood, report.stood)
        if self._first is None:
            self._first = now
        if report.failure is not None:
            self.drain()
        # Not all members: one whose host is gone may find no other place before these end.
        if self._order is Order.GO_ON and self._partitions == self._owned(r for r in self.members if r.is_done):
            self._order = Order.FINISH

    def begins_with(self, source: Nanos) -> None:
        """The earliest time of the source that there is to replay."""
        self._source = source

    def drain(self) -> None:
        """Have all come to an end now."""
        self._order = Order.DRAIN

    def tick(self, now: Nanos, wall: Nanos) -> None:
        """Some time has passed: set the reference if it is time to."""
        self._now = now
        if self.reference is None and self._source is not None and self._first is not None:
            is_late = now - self._first > READY_WITHIN
            ready = [r for r in self.members if r.is_ready]
            if is_late or (len(ready) == self.workers and self._partitions == self._owned(ready)):
                self.reference = Reference(source=self._source, wall=wall + LEAD)
        sent = self.figures.sent
        self._sent.append((now, sent))
        while now - self._sent[0][0] > RATE_OVER:
            self._sent.popleft()

    @staticmethod
    def _owned(members: Iterable[Report]) -> set[int]:
        return {number for member in members for number in member.owned}

    # What follows from it.

    def order_for(self, task: int, attempt: int) -> Order:
        """What an attempt of a task is to do. One that has been replaced is to leave its place to the later."""
        latest = self._latest.get(task)
        return Order.DRAIN if latest is not None and attempt < latest.attempt else self._order

    def take_dead(self) -> list[str]:
        """Members of the consumer group that have been replaced without having left it, each told once."""
        dead, self._dead = self._dead, []
        return dead

    @property
    def members(self) -> list[Report]:
        """The latest that each member told."""
        return [self._latest[task] for task in sorted(self._latest)]

    @property
    def is_drained(self) -> bool:
        """Whether all members that came have said their last: nobody is left to drain."""
        return all(r.is_last for r in self.members)

    @property
    def is_deserted(self) -> bool:
        """The same, and some members have not come yet."""
        return len(self._latest) < self.workers and self.is_drained

    @property
    def failed(self) -> Report | None:
        """The member that said why the run cannot go on."""
        return next((r for r in self.members if r.failure is not None), None)

    @property
    def restarts(self) -> int:
        """How many attempts have been replaced."""
        return len(self._earlier)

    @property
    def figures(self) -> Figures:
        """What all have counted, those that are gone too."""
        told = [r.figures for r in (*self._earlier, *self._latest.values())]
        verdicts: Counter[str] = Counter()
        late: Counter[int] = Counter()
        for figures in told:
            verdicts.update(figures.verdicts)
            late.update(figures.late)
        return Figures(
            requests=sum(f.requests for f in told) - sum(r.figures.to_send for r in self._gone()),
            to_send=sum(f.to_send for f in told) - sum(r.figures.to_send for r in self._gone()),
            sent=sum(f.sent for f in told),
            answered=sum(f.answered for f in told),
            failed=sum(f.failed for f in told),
            unsent=sum(f.unsent for f in told),
            half=sum(f.half for f in told),
            buried=sum(f.buried for f in told),
            verdicts=dict(verdicts),
            late=dict(late),
            late_total=sum(f.late_total for f in told),
            late_most=max((f.late_most for f in told), default=0),
        )

    def _gone(self) -> list[Report]:
        """The last of those whose unsent requests others read again."""
        silent = [r for r in self.members if self._now - self._heard[r.task] > SILENT_AFTER]
        return [*self._earlier, *silent]

    @property
    def status(self) -> Status:
        """The fleet as if it were one member."""
        figures, states = self.figures, [r.status for r in self.members if not r.is_last]
        late = lateness(figures)
        clocks = sorted({state.clock for state in states})
        return Status(
            clock=clocks[0] if len(clocks) == 1 else ", ".join(c for c in clocks if c != "runs") or "has not begun",
            requests=figures.requests,
            sent=figures.sent,
            per_second=self._per_second(),
            source_time=_earliest(state.source_time for state in states),
            late_p50_ms=late.quantile(0.5) / 1e6,
            late_p99_ms=late.quantile(0.99) / 1e6,
            on_their_way=sum(state.on_their_way for state in states),
            waiting=sum(state.waiting for state in states),
            failed=figures.failed,
            unsafe=sum(state.unsafe for state in states),
            partitions=_newest(p for state in states for p in state.partitions),
        )

    def _per_second(self) -> float | None:
        if len(self._sent) < 2 or self._sent[-1][0] <= self._sent[0][0]:
            return None
        (began, before), (now, sent) = self._sent[0], self._sent[-1]
        return (sent - before) * 1e9 / (now - began)


def lateness(figures: Figures) -> Histogram:
    """How late requests were sent."""
    late = Histogram()
    late.merge(figures.late, total=figures.late_total, most=figures.late_most)
    return late


def mismatches(figures: Figures) -> int:
    """How many answers were not the source's."""
    return sum(figures.verdicts.get(name, 0) for name in MISMATCHES)


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


def _newest(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """One of each; while a partition moves, two may tell of it, and the one that is further knows more."""
    found: dict[tuple[str, int], PartitionStatus] = {}
    for told in sorted(partitions, key=lambda p: -1 if p.frontier is None else p.frontier):
        found[told.topic, told.partition] = told
    return [found[place] for place in sorted(found)]
