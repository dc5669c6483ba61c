"""The replay engine: transactions in, each sent when it is due, and handed on when all is known of it.

It is the sink of an accumulator. A request goes to the session of its connection; the engine keeps what all sessions
share: the timeline, the slots, the target's health, and the leave to send. A request is *over* when the target's part
of it is; it is *finished* when the source's answer is known too. Then it goes to `finish`, which lets its records go
once the result is safe.

The cap on requests at a time counts exchanges with the target and nothing else: a slot is free again when the target
has answered, so it never waits for a source's answer that nobody reads.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction

from strandline.clock import Clock, SystemClock
from strandline.core.histogram import Histogram
from strandline.core.pacing import Pace
from strandline.replay.alarms import Alarms
from strandline.replay.connection import Later
from strandline.replay.guard import Guard
from strandline.replay.health import Health, Refused, WhenDown, is_ours
from strandline.replay.leave import Leave
from strandline.replay.limits import Limits
from strandline.replay.outgoing import CapturedBody, outgoing
from strandline.replay.proving import Owner
from strandline.replay.retries import RetryPolicy
from strandline.replay.session import Phase, Place, Session, place_of
from strandline.replay.spool import Spool, Spools
from strandline.replay.target import Target
from strandline.replay.timeline import Timeline
from strandline.replay.transforms import Transform
from strandline.replay.work import Work
from strandline.units import Nanos, nanos
from strandline.wire.head import add_header
from strandline.wire.identity import marker
from strandline.wire.transactions import Cause, ConnectionKey, Transaction

SWEEP = 0.5
STALLED_AFTER = timedelta(seconds=22.5)
"""How long this process may stand still before it must prove its ownership: half of the usual session's time-out."""
UNSENT = {
    Cause.CLOSED: "the source's client closed the connection before the request was whole",
    Cause.EXPIRED: "nothing more was captured of the request for too long",
    Cause.BROKEN: "a part of the request is not in the log",
}
HALF = "half of the request is behind the end of what was read; the next run finds it"


@dataclass
class Counters:
    """What happened so far."""

    requests: int = 0
    sent: int = 0
    attempts: int = 0
    answered: int = 0
    failed: int = 0
    unsent: int = 0
    half: int = 0
    """Requests that were half in the log at the end of what was to be read; left for another time."""
    unsendable: int = 0
    """Of those that failed, those of which nothing was sent."""
    left: int = 0
    """Requests that were given back before they were sent: whoever has their partition next reads them again."""
    lateness: Histogram = field(default_factory=Histogram)

    @property
    def ours(self) -> int:
        """Requests that were not given back."""
        return self.requests - self.left

    @property
    def to_send(self) -> int:
        """Of these, those that wait to be sent."""
        return self.ours - self.sent - self.unsendable


class Engine:
    """Sends transactions at their time, in the order of their connection."""

    def __init__(
        self,
        target: Target,
        finish: Callable[[Work], None],
        *,
        transform: Transform,
        policy: RetryPolicy,
        speed: Fraction = Fraction(1),
        reference: Pace | None = None,
        when_down: WhenDown = WhenDown.PAUSE,
        limits: Limits | None = None,
        marks: bool = True,
        owner: Owner | None = None,
        stalled_after: timedelta = STALLED_AFTER,
        clock: Clock | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = clock or SystemClock()
        self.alarms = Alarms(self.loop, self.clock)
        self.target = target
        self.limits = limits or Limits()
        self.spools = Spools(self.limits.memory)
        self.counters = Counters()
        self.leave = Leave()
        self.timeline = Timeline(self.clock, speed, reference)
        self._failure: BaseException | None = None
        self._health = Health(
            target,
            self.timeline,
            self.leave,
            self.fail,
            when_down=when_down,
            patience=self.limits.down_for,
            sendings=lambda: self.counters.attempts,
        )
        self._guard = (
            Guard(owner, self.leave, nanos(stalled_after), self._break_off_unsent) if owner is not None else None
        )
        self._finish = finish
        self._transform = transform
        self._policy = policy
        self._marks = marks
        self._keep = self.limits.keep
        self._sessions: dict[Place, Session] = {}
        self._works: dict[Transaction, Work] = {}
        self._assigned: dict[int, Nanos] = {}
        self._sent_through: dict[int, int] = {}
        self._left_from: dict[int, int] = {}
        self._slots = self.limits.concurrency
        self._queued: deque[Session] = deque()
        self._exchanging: set[Session] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._undecided = 0
        self.waiting_bytes = 0
        """Memory of whole requests that are not over: what sending alone will free."""
        self.emptied = asyncio.Event()
        """Set when a session has nothing to send for now, or is gone."""
        self._sweeping = self.loop.call_later(SWEEP, self._sweep)

    # What the accumulator tells.

    def on_request(self, transaction: Transaction) -> None:
        self.counters.requests += 1
        session = self._session_for(transaction)
        work = self._works[transaction] = Work(transaction, spool_of(transaction))
        self.waiting_bytes += work.spool.held
        session.add(work)

    def on_answer(self, transaction: Transaction) -> None:
        work = self._works.get(transaction)
        if work is None:
            return
        if work.is_over:
            self._finished(work)
            return
        answer = transaction.answer
        if answer is not None:
            self.waiting_bytes += work.spool.keep_too(len(answer.head) + len(answer.body))
        if self._undecided:
            session = self._sessions[place_of(transaction)]
            if session.phase is Phase.UNDECIDED and session.head is work:
                session.decide()

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        if cause in UNSENT:
            self.counters.unsent += 1
            self._finish(Work(transaction, spool_of(transaction), error=UNSENT[cause]))
        elif cause is Cause.END:
            self.counters.half += 1
            self._finish(Work(transaction, spool_of(transaction), error=HALF, is_left=True))
        else:
            # Whoever reads on from what is committed finds the request again.
            self._leave_undone(transaction)
            spool_of(transaction).release()

    def on_close(self, key: ConnectionKey, partition: int, at: Nanos, cause: Cause) -> None:
        session = self._sessions.get((partition, key))
        if session is not None and cause not in {Cause.REASSIGNED, Cause.END}:
            session.end(at)

    def _session_for(self, transaction: Transaction) -> Session:
        """What sends a transaction: the session of its connection, a new one where there is none of its generation."""
        record, key = transaction.record, transaction.key
        place, generation = (record.partition, key), record.generation
        session = self._sessions.get(place)
        if session is not None and session.generation != generation:
            # The log is read anew from what is committed, and with it all that this one has left.
            session.abort()
            session = None
        if session is None:
            session = self._sessions[place] = Session(self, place, generation, self._not_before(transaction))
        return session

    def _not_before(self, transaction: Transaction) -> Nanos:
        """A connection that another member may have had open when its partition came to us rests for a while."""
        assigned = self._assigned.get(transaction.record.partition)
        if assigned is None or not (transaction.was_open or self.timeline.due(transaction.began) <= assigned):
            return Nanos(0)
        return Nanos(assigned + nanos(self.limits.quiescence))

    # Partitions that come and go.

    def assign(self, partition: int, at: Nanos) -> None:
        """A partition is ours since this time."""
        self.release(partition)
        self._assigned[partition] = at

    def sent_through(self, partition: int) -> int:
        """The highest offset of a partition from which a request was sent since it is ours; -1 before."""
        return self._sent_through.get(partition, -1)

    def release(self, partition: int) -> int | None:
        """A partition is ours no more. From this offset on something repeats: it was sent, and not all before it."""
        self._assigned.pop(partition, None)
        sent, left = self._sent_through.pop(partition, -1), self._left_from.pop(partition, None)
        return left if left is not None and left <= sent else None

    def _leave_undone(self, transaction: Transaction) -> None:
        partition, offset = transaction.record.partition, transaction.record.offset
        self._left_from[partition] = min(offset, self._left_from.get(partition, offset))

    @property
    def is_busy(self) -> bool:
        """Whether any request waits or is on its way, or any connection is still to be closed."""
        return any(session.waiting or session.is_to_close for session in self._sessions.values())

    # What a session asks.

    def may_send(self) -> bool:
        """Whether anything may be sent now."""
        if self._guard is not None:
            self._guard.check()
        return self.leave.is_given

    def take_slot(self, session: Session) -> bool:
        """Whether there is a free slot; if not, the session is called when there is."""
        if not self._slots:
            self._queued.append(session)
            return False
        self._slots -= 1
        return True

    def free_slot(self, session: Session) -> None:
        """An exchange with the target has ended."""
        self._exchanging.discard(session)
        self._slots += 1
        while self._queued and self._slots:
            session = self._queued.popleft()
            if session.phase is Phase.QUEUED:
                session.start()

    def prepare(self, work: Work) -> tuple[bytes, list[Later]]:
        """What to send now, and what later. Raises TransformFailed."""
        transaction, spool = work.transaction, work.spool
        captured = len(transaction.head)
        if not captured:
            self._transform.pass_raw()
        elif not work.head or self._transform.is_timely:
            work.head, work.body = self._transform.apply(transaction.head, CapturedBody(spool, captured))
            if self._marks:
                record = transaction.record
                work.head = add_header(work.head, marker(record.partition, record.offset, transaction.ordinal))
        return outgoing(spool.pieces, captured, work.head, work.body, self.timeline.due)

    def sending(self, session: Session, work: Work, now: Nanos) -> None:
        """A request goes out."""
        counters = self.counters
        counters.attempts += 1
        if not work.attempts:
            counters.sent += 1
            counters.lateness.add(now - work.due)
            record = work.transaction.record
            if record.offset > self._sent_through.get(record.partition, -1):
                self._sent_through[record.partition] = record.offset
        self._exchanging.add(session)

    def keep(self) -> int:
        """How much of an answer's body is kept: nothing while memory is short."""
        return 0 if self.spools.in_memory >= self.limits.memory else self._keep

    def is_decidable(self, work: Work) -> bool:
        """Whether another attempt does not depend on the source's answer, which is not known yet."""
        return not self._policy.needs_source(work.answer, work.head)

    def undecided(self, change: int) -> None:
        """One session more, or less, stands still until an answer of the source is known."""
        self._undecided += change

    def delay(self, work: Work) -> Nanos | None:
        """How long to wait before the next attempt, or None when there is none."""
        return self._policy.decide(len(work.attempts), work.transaction.answer, work.answer, work.head)

    def over(self, work: Work) -> None:
        """The target's part of a transaction is over."""
        work.is_over = True
        self.waiting_bytes -= work.spool.held
        if work.error is None and work.attempts:
            work.error = work.attempts[-1].error
        if work.error is None:
            self.counters.answered += 1
        else:
            self.counters.failed += 1
            self.counters.unsendable += not work.attempts
        if work.transaction.is_answered:
            self._finished(work)

    def _finished(self, work: Work) -> None:
        del self._works[work.transaction]
        self._finish(work)

    def gone(self, session: Session, left: Iterable[Work], unsent: int = 0) -> None:
        """A session has ended; what is left of it stays undone, and so much of that was never sent."""
        self._sessions.pop(session.place, None)
        self.counters.left += unsent
        for work in left:
            self._works.pop(work.transaction, None)
            self._leave_undone(work.transaction)
            self.waiting_bytes -= work.spool.held
            work.spool.release()
        self.emptied.set()

    def rested(self) -> None:
        """A session has nothing to send for now."""
        self.emptied.set()

    def refused(self, work: Work, error: OSError | TimeoutError) -> Nanos | Refused:
        """A connection could not be made."""
        if is_ours(error):
            work.shortages += 1
            return self._health.short(work.shortages, error)
        work.refusals += 1
        return self._health.refused(work.refusals, error)

    def spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Run something beside; it ends with the engine."""
        task = self.loop.create_task(work)
        self._connecting.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    # Its end.

    def fail(self, error: BaseException) -> None:
        """The replay cannot go on."""
        self._failure = self._failure or error

    def check(self) -> None:
        """Raise what keeps the replay from going on."""
        if self._failure is not None:
            raise self._failure

    def _sweep(self) -> None:
        """Give up on answers that do not come."""
        now, limit = self.clock.monotonic(), nanos(self.limits.answer_within)
        for session in list(self._exchanging):
            if now - session.sends_until >= limit:
                session.give_up(f"no answer within {self.limits.answer_within.total_seconds():g} s")
        self._sweeping = self.loop.call_later(SWEEP, self._sweep)

    def _break_off_unsent(self) -> None:
        """We stood still: what a connection has and the kernel has not would go out without anybody being asked."""
        for session in list(self._exchanging):
            session.break_off_unsent()

    def close(self) -> None:
        """Close every connection, wait for nothing."""
        self._sweeping.cancel()
        self._health.close()
        if self._guard is not None:
            self._guard.close()
        for session in list(self._sessions.values()):
            session.abort()
        for task in self._connecting:
            task.cancel()
        self.alarms.close()
        self.spools.close()

    # What others may look at, from any thread.

    @property
    def sessions(self) -> list[Session]:
        """The source connections that are being replayed."""
        return list(self._sessions.values())

    @property
    def works(self) -> list[Work]:
        """The requests that are not finished."""
        return list(self._works.values())

    @property
    def waiting(self) -> int:
        """How many requests are not finished."""
        return len(self._works)

    def session_of(self, transaction: Transaction) -> Session | None:
        """What replays a transaction's connection now."""
        return self._sessions.get(place_of(transaction))

    @property
    def stalls(self) -> int:
        """How often this process stood still for so long that it had to prove its ownership."""
        return 0 if self._guard is None else self._guard.stalls

    @property
    def is_waiting_for_source(self) -> bool:
        """Whether a connection stands still until an answer of the source is known."""
        return self._undecided > 0

    @property
    def in_flight(self) -> int:
        """How many exchanges with the target go on."""
        return self.limits.concurrency - self._slots


def spool_of(transaction: Transaction) -> Spool:
    assert isinstance(transaction.packets, Spool)  # noqa: S101  (we made it)
    return transaction.packets
