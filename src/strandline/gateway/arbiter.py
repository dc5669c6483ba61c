"""What all workers of a gateway share, decided in one place: room for connections, each client's turn to be sent old
records, and how many are sent them at once.

How many depends on how late the workers' event loops are; who waits is served by rank.
"""

from collections.abc import Callable
from typing import NamedTuple

from strandline.core.line import Line
from strandline.core.room import Room
from strandline.core.throttle import Throttle
from strandline.core.turns import Turns
from strandline.gateway.limits import Limits
from strandline.gateway.messages import (
    Answered,
    Ask,
    Denied,
    Done,
    Enter,
    Entered,
    FromWorker,
    Leave,
    Replays,
    State,
    ToWorker,
)

# At least so many replays go on at once, however late everything is, or as many as the limit allows.
LEAST_AT_ONCE = 4
# An event loop that is later than this has too much to do.
LATE_S = 0.1
LONGEST_RETRY_S = 60.0
TICK_S = 0.2


class Asker(NamedTuple):
    """One who wants to be sent old records: whose client it is, and the number of its question."""

    worker: int
    number: int


Reply = Callable[[ToWorker], None]


class Arbiter:
    """Answers at once, or, to those who wait in line, when it is their turn. Workers are known by a number."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self.room: Room[int] = Room(most=limits.connections, most_per_address=limits.connections_per_address)
        self._turns = Turns(limits.cold_every_s, most_names=limits.cold_clients)
        most = limits.cold_at_once
        self._throttle = Throttle(least=min(LEAST_AT_ONCE, most), most=most, late=LATE_S)
        self.line: Line[Asker] = Line(at_once=most, most_waiting=limits.cold_waiting)
        self._lag = 0.0
        self._next_tick = clock() + TICK_S
        self._asked: dict[Asker, tuple[Ask, Reply]] = {}
        """Those who are in line or inside."""

    def heard(self, worker: int, message: FromWorker, reply: Reply) -> None:
        """Do what a worker's message asks for."""
        match message:
            case Enter(number=number, address=address):
                reply(Entered(number, self.room.enter(worker, address)))
            case Leave(address=address):
                self.room.leave(worker, address)
            case Ask():
                self._ask(Asker(worker, message.number), message, reply)
            case Done(number=number):
                self._done(Asker(worker, number))
            case State(lag=lag):
                self._lag = max(self._lag, lag)
                if self._clock() >= self._next_tick:
                    self._tick()

    def replays(self) -> Replays:
        """How many go on, and how many wait."""
        return Replays(self.line.at_once, self.line.inside, self.line.waiting)

    def gone(self, worker: int) -> None:
        """A worker has ended; whatever its clients had is free."""
        self.room.forget(worker)
        for asker in [asker for asker in self._asked if asker.worker == worker]:
            self._done(asker)

    def _ask(self, asker: Asker, ask: Ask, reply: Reply) -> None:
        if wait := self._wait(ask):
            reply(Answered(ask.number, self._limited(wait)))
            return
        self._asked[asker] = ask, reply
        sent_away = self.line.come(asker, ask.rank)
        if sent_away is not None:
            its, tell = self._asked.pop(sent_away)
            tell(Answered(its.number, self._busy()))
        self._admit()

    def _done(self, asker: Asker) -> None:
        self._asked.pop(asker, None)
        self.line.leave(asker)
        self._admit()

    def _tick(self) -> None:
        """Look again how many replays may go on at once."""
        self._next_tick = self._clock() + TICK_S
        self.line.at_once = self._throttle.observe(self._lag, self.line.inside)
        self._lag = 0.0
        self._admit()

    def _admit(self) -> None:
        while askers := self.line.admit():
            for asker in askers:
                ask, reply = self._asked[asker]
                # Two of one client's may have waited in line together.
                if wait := self._wait(ask):
                    del self._asked[asker]
                    self.line.leave(asker)
                    reply(Answered(ask.number, self._limited(wait)))
                    continue
                if not ask.is_paid:
                    self._turns.take(ask.owner, ask.name, self._clock())
                reply(Answered(ask.number, None))

    def _wait(self, ask: Ask) -> float:
        return 0.0 if ask.is_paid else self._turns.wait(ask.owner, ask.name, self._clock())

    def _limited(self, wait: float) -> Denied:
        every, most = self._limits.cold_every_s, self._limits.cold_clients
        text = f"one replay in {every:g} s for a client, and {most:,} for all clients of one subject or address"
        return Denied("replay_limited", text, round(wait, 3))

    def _busy(self) -> Denied:
        wait = self._limits.cold_wait_s * (1 + self.line.waiting / self.line.at_once)
        return Denied("busy", "too many replays at once", round(min(wait, LONGEST_RETRY_S), 3))
