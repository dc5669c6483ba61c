"""One source connection, replayed: its requests strictly in order, each when it is due, on one connection at a time.

    IDLE ──add──▶ WAITING ──due──▶ QUEUED ──slot──▶ CONNECTING ──▶ EXCHANGING ──answer──▶ (decide) ──▶ IDLE or WAITING
                     ▲                ▲                 │                                   │
                     │                └── BACKING_OFF ◀─┴───────────────────────────────────┤ once more
                     └── PARKED (nothing may be sent now)                       UNDECIDED ◀─┘ needs the source's answer

Any state becomes CLOSED: when the source closed the connection and all is sent, or when the session is stopped.
"""

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from strandline.errors import TransformFailed
from strandline.replay.connection import TargetConnection
from strandline.replay.health import Refused
from strandline.replay.work import Attempt, Work
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.transactions import ConnectionKey, Transaction

if TYPE_CHECKING:
    import asyncio

    from strandline.replay.engine import Engine


AHEAD = Nanos(1_000_000_000)
"""So long before its first request is due, a connection is opened: to connect takes a while, with TLS a long one."""

Place = tuple[int, ConnectionKey]
"""A source connection on a partition. One that was open while its topic got more partitions lies on two of them."""


def place_of(transaction: Transaction) -> Place:
    """Where a transaction was captured."""
    return transaction.record.partition, transaction.key


class Phase(Enum):
    """What a session is at; the value says what its request waits for."""

    IDLE = "nothing"
    WAITING = "its time"
    PARKED = "leave to send"
    QUEUED = "a free slot"
    CONNECTING = "a connection to the target"
    EXCHANGING = "the target's answer"
    UNDECIDED = "the source's answer"
    BACKING_OFF = "the next attempt"
    CLOSED = "nothing any more"


# Here and not by the name of their class, which costs as much as a call, several times for each request.
IDLE, WAITING, PARKED, QUEUED, CONNECTING, EXCHANGING, UNDECIDED, BACKING_OFF, CLOSED = Phase


class Session:
    """Sends what one source connection sent, as far as it lies on one partition and came in one generation of it."""

    def __init__(self, engine: "Engine", place: Place, generation: int, not_before: Nanos) -> None:
        self.place = place
        self.generation = generation
        self.phase = IDLE
        self.not_before = not_before
        self._engine = engine
        self._queue: deque[Work] = deque()
        self._connection: TargetConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._has_slot = False
        self._began = Nanos(0)
        self.sends_until = Nanos(0)
        """When the last piece goes out of the request that is on its way; if the source took long, so do we."""
        self._close_at: Nanos | None = None
        self._is_stopping = False
        self._through, self._by = 0, Nanos(0)

    def add(self, work: Work) -> None:
        """Another request."""
        self._close_at = None
        self._queue.append(work)
        if self.phase is IDLE:
            self._await_time()

    def end(self, at: Nanos) -> None:
        """The source closed the connection at this time."""
        self._close_at = at
        if self.phase is IDLE:
            self._await_close()

    def stop(self, through: int, by: Nanos) -> None:
        """Begin nothing beyond this offset of the log, nor what is due later than this; be gone when the rest is over.

        What others have sent behind a request that is left would be sent again by whoever goes on after us.
        """
        self._is_stopping = True
        self._through, self._by = through, by
        if self.phase is EXCHANGING or self.phase is CLOSED:
            return
        if self.phase is UNDECIDED:
            # No answer of the source makes a difference any more.
            self._engine.undecided(-1)
            self.phase = IDLE
        if self._queue and self._queue[0].attempts:
            # It has been sent: whoever goes on after us would send it again.
            self._over()
        elif self.phase is PARKED or not self._is_wanted():
            self.abort()

    def _is_wanted(self) -> bool:
        """Whether the next request is to be sent before we stop."""
        if not self._queue:
            return False
        transaction = self._queue[0].transaction
        due = max(self._engine.timeline.due(transaction.began), self.not_before)
        return transaction.record.offset <= self._through and due <= self._by

    def abort(self) -> None:
        """Be gone at once."""
        if self.phase is CLOSED:
            return
        if self.phase is UNDECIDED:
            self._engine.undecided(-1)
        unsent = sum(not work.attempts for work in self._queue)
        if self.phase is EXCHANGING and not self._queue[0].attempts:
            unsent -= 1
        self.phase = CLOSED
        self._free_slot()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
        self._engine.gone(self, self._queue, unsent)
        self._queue.clear()

    def _await_time(self) -> None:
        work = self._queue[0]
        engine = self._engine
        now = engine.clock.monotonic()
        work.due = max(engine.timeline.due(work.transaction.began), self.not_before)
        self.phase = WAITING
        if work.due <= now:
            self.start()
        else:
            engine.alarms.at(work.due, self._on_time)
            if self._connection is None:
                engine.alarms.at(Nanos(max(work.due - AHEAD, self.not_before, now)), self._open_ahead)

    def _open_ahead(self) -> None:
        """Have a connection ready for the first request. Nobody hears of it if that fails: the request asks anew."""
        if self.phase is WAITING and self._connection is None and self._connecting is None and self._engine.may_send():
            self._connect()

    def _on_time(self) -> None:
        if self.phase is WAITING:
            # The clock may have been stopped meanwhile, so the time is looked at anew.
            self._await_time()

    def start(self) -> None:
        """Begin, if there is leave and a slot."""
        if not self._engine.may_send():
            self._park()
        elif self._engine.take_slot(self):
            self.go()
        else:
            self.phase = QUEUED

    def _park(self) -> None:
        if self._is_stopping:
            self.abort()
            return
        self.phase = PARKED
        self._engine.leave.park(self._wake)

    def _wake(self) -> None:
        if self.phase is PARKED:
            self._await_time()

    def go(self) -> None:
        """There is a slot."""
        self._has_slot = True
        if self._connection is not None and self._connection.is_usable:
            self._send(self._connection)
        else:
            self.phase = CONNECTING
            if self._connecting is None:
                self._connect()

    def _connect(self) -> None:
        engine = self._engine
        self._connecting = engine.spawn(engine.target.reach(self._make, self._connected, self._not_connected))

    def _make(self) -> TargetConnection:
        engine = self._engine
        return TargetConnection(engine.clock, engine.alarms, engine.may_send, engine.leave.park, engine.spools.count)

    def _connected(self, connection: TargetConnection) -> None:
        self._connecting = None
        self._connection = connection
        if self.phase is not CONNECTING:
            return
        if self._engine.may_send():
            self._send(connection)
        else:
            # It took long to connect, and we may have stood still meanwhile.
            self._free_slot()
            self._park()

    def _not_connected(self, error: OSError | TimeoutError) -> None:
        self._connecting = None
        if self.phase is CONNECTING:
            self._refused(error)

    def _refused(self, error: OSError | TimeoutError) -> None:
        work = self._queue[0]
        verdict = self._engine.refused(work, error)
        if verdict is Refused.FAIL:
            self._fail(work, f"cannot connect to {self._engine.target.url}: {str(error) or 'no answer'}")
            return
        self._free_slot()
        if verdict is Refused.PARK:
            self._park()
        else:
            self._back_off(verdict)

    def _send(self, connection: TargetConnection) -> None:
        work = self._queue[0]
        engine = self._engine
        try:
            first, later = engine.prepare(work)
        except TransformFailed as error:
            self._fail(work, str(error))
            return
        self.phase = EXCHANGING
        self._began = engine.clock.monotonic()
        self.sends_until = max(self._began, later[-1].due) if later else self._began
        engine.sending(self, work, self._began)
        connection.send(first, later, work.transaction.method, engine.keep(), self._answered)

    def _fail(self, work: Work, problem: str) -> None:
        """The request cannot be sent at all."""
        work.error = problem
        # Not at once: thousands that fail one after the other would be one deep call.
        self._engine.loop.call_soon(self._failed, work)

    def _failed(self, work: Work) -> None:
        # Who stops the session may have put it aside by now, and begun the next.
        if self.head is work:
            self._over()

    def give_up(self, problem: str) -> None:
        """Wait for the target's answer no longer."""
        if self.phase is EXCHANGING and self._connection is not None:
            self._connection.fail(problem)

    def break_off_unsent(self) -> None:
        """Have nothing more go out of a request that the kernel does not have whole; whether to send again is asked."""
        if self.phase is EXCHANGING and self._connection is not None and self._connection.has_unsent:
            self._connection.fail("this process stood still before the request was sent whole")

    def _answered(self, answer: Answer | None, error: str | None) -> None:
        work = self._queue[0]
        work.attempts.append(Attempt(self._began, self._engine.clock.monotonic(), answer, error))
        work.answer = answer if error is None else None
        if answer is not None:
            self._engine.waiting_bytes += work.spool.keep_too(len(answer.head) + len(answer.body))
        self._free_slot()
        self.decide()

    def decide(self) -> None:
        """Whether to send once more, when all is known that it depends on."""
        work = self._queue[0]
        if self.phase is UNDECIDED:
            self._engine.undecided(-1)
        if not (work.transaction.is_answered or self._is_stopping or self._engine.is_decidable(work)):
            self.phase = UNDECIDED
            self._engine.undecided(1)
            return
        delay = self._engine.delay(work)
        if delay is None or self._is_stopping:
            self._over()
        else:
            self._back_off(delay)

    def _back_off(self, delay: Nanos) -> None:
        self.phase = BACKING_OFF
        self._engine.alarms.at(Nanos(self._engine.clock.monotonic() + delay), self._try_again)

    def _try_again(self) -> None:
        if self.phase is BACKING_OFF:
            self.start()

    def _over(self) -> None:
        if self.phase is CLOSED:
            return
        self._free_slot()
        self._engine.over(self._queue.popleft())
        if self._is_stopping and not self._is_wanted():
            if self.phase is EXCHANGING:
                # Its exchange has ended, and the next was never begun.
                self.phase = IDLE
            self.abort()
        elif self._queue:
            self._await_time()
        else:
            self.phase = IDLE
            self._engine.rested()
            if self._close_at is not None:
                self._await_close()

    def _await_close(self) -> None:
        if self.phase is not IDLE or self._close_at is None:
            return
        engine = self._engine
        due, reached = engine.timeline.due(self._close_at), engine.timeline.reached()
        if not engine.leave.is_given and (reached is None or reached < self._close_at):
            # The clock may stand still. To close needs no leave, so what was due before is closed.
            engine.leave.park(self._await_close)
            return
        if due > engine.clock.monotonic():
            engine.alarms.at(due, self._await_close)
            return
        self.phase = CLOSED
        if self._connection is not None:
            self._connection.close()
        engine.gone(self, ())

    def _free_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._engine.free_slot(self)

    @property
    def partition(self) -> int:
        """Where its records are."""
        return self.place[0]

    @property
    def is_to_close(self) -> bool:
        """Whether the source closed it, and it is still to be closed at its time."""
        return self._close_at is not None

    @property
    def waiting(self) -> int:
        """How many requests are not over."""
        return len(self._queue)

    @property
    def head(self) -> Work | None:
        """The request that is next or on its way. From any thread."""
        try:
            return self._queue[0]
        except IndexError:
            return None
