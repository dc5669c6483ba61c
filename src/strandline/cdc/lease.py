"""Leadership among instances: an advisory lock of Postgres, and a lease row.

The lock makes a hand-over quick: it is free the moment its session ends. The row decides: a session may live on in a
process that stands still, and one that is dead may have tasks elsewhere that still send. What may be decided over the
row is in `core/lease.py`; here it is read and written.
"""

import hashlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from msgspec import Struct

from strandline.cdc import tables
from strandline.cdc.session import Session
from strandline.clock import AwakeClock, Clock
from strandline.core import lease as core
from strandline.core.lease import Claim, Granted, Lease, Refused
from strandline.core.standstill import Standstill
from strandline.errors import NotLeading, PostgresError, PostgresRefused, SlotBusy
from strandline.units import Nanos, nanos

TERM = timedelta(seconds=10)
MARGIN = timedelta(milliseconds=250)
# Of a term, the share after which it is asked for again; sooner where that is long, for it is how a lock session that
# is lost is noticed.
AGAIN = 3
AT_LEAST_EVERY = 1.0
LOCK_WAIT = 1.0
ANSWER = 5.0
MOST_CONFLICTS = 50
# Whoever publishes asks several times a second whether it leads, but for when Spark begins or a snapshot is taken. One
# that has asked and then does not for so long, such as in a JVM that says nothing, or gets no further, is replaced.
PATIENCE = timedelta(minutes=3)
# So long after a lease ran out, a session that still holds the lock is taken for one that stands still.
STUCK = nanos(timedelta(seconds=1))

TABLE = """
    create table if not exists strandline.lease (
        name text primary key, version bigint not null, leadership bigint not null, holder text not null,
        expires timestamptz not null, batch bigint not null, attempt bigint not null, granted timestamptz not null)"""
READ = """
    select version, leadership, holder, (extract(epoch from expires) * 1000000)::bigint, batch, attempt,
        (extract(epoch from granted) * 1000000)::bigint, (extract(epoch from clock_timestamp()) * 1000000)::bigint
    from (select) as always left join strandline.lease on name = $1"""
CREATE = """
    insert into strandline.lease (name, version, leadership, holder, expires, batch, attempt, granted)
    select $1, $2::bigint + 1, $3::bigint, $4, timestamptz 'epoch' + $5::bigint * interval '1 microsecond',
        $6::bigint, $7::bigint, timestamptz 'epoch' + $8::bigint * interval '1 microsecond'
    on conflict do nothing returning version"""
CHANGE = """
    update strandline.lease set version = version + 1, leadership = $3::bigint, holder = $4,
        expires = timestamptz 'epoch' + $5::bigint * interval '1 microsecond', batch = $6::bigint,
        attempt = $7::bigint, granted = timestamptz 'epoch' + $8::bigint * interval '1 microsecond'
    where name = $1 and version = $2::bigint returning version"""
LOCK = "select set_config('lock_timeout', $1, true), pg_advisory_lock($2::bigint)"
STUCK_SESSION = """
    select pg_terminate_backend(pid) from pg_locks
    where locktype = 'advisory' and granted and objsubid = 1 and pid <> pg_backend_pid()
        and database = (select oid from pg_database where datname = current_database())
        and (classid::bigint << 32 | objid::bigint) = $1::bigint"""

Decision = TypeVar("Decision", bound=Lease | Granted)


class LeaseStatus(Struct, frozen=True, kw_only=True):
    """A lease as everybody can see it."""

    lease: Lease
    now: Nanos
    """On the clock of the server."""


def create_lease_table(session: Session) -> None:
    """Make the schema and the table, where they are missing."""
    remedy = "have it created by a role that may: GRANT CREATE ON DATABASE, or run `strandline cdc` once as one"
    tables.create(session, {"lease": TABLE}, remedy)


def lease_status(session: Session, name: str) -> LeaseStatus | None:
    """Who leads, or led last; None where nobody ever did."""
    _, found, now = _read(session, name)
    return None if found is None else LeaseStatus(lease=found, now=now)


def _read(session: Session, name: str) -> tuple[int, Lease | None, Nanos]:
    ((version, leadership, holder, expires, batch, attempt, granted, now),) = tables.ask(session, READ, name)
    moment = Nanos(int(now or 0) * 1_000)
    if version is None:
        return 0, None, moment
    found = Lease(
        leadership=int(leadership or 0),
        holder=holder or "",
        expires=Nanos(int(expires or 0) * 1_000),
        claim=Claim(int(batch or 0), int(attempt or 0)),
        granted=Nanos(int(granted or 0) * 1_000),
    )
    return int(version), found, moment


def change_lease(
    session: Session, name: str, decide: Callable[[Lease | None, Nanos], Decision | Refused]
) -> tuple[Decision | Refused, Nanos]:
    """Read, decide, and write if nobody has written meanwhile; else again. Also the time at which it was read."""
    now = Nanos(0)
    for _ in range(MOST_CONFLICTS):
        version, found, now = _read(session, name)
        decision = decide(found, now)
        if isinstance(decision, Refused):
            return decision, now
        wanted = decision.lease if isinstance(decision, Granted) else decision
        values = (
            wanted.leadership, wanted.holder, wanted.expires // 1_000, *wanted.claim, wanted.granted // 1_000,
        )  # fmt: skip
        if tables.ask(session, CREATE if found is None else CHANGE, name, version, *values):
            return decision, now
    return Refused(f"its row was changed {MOST_CONFLICTS} times under us", Nanos(0)), now


class Leadership:
    """This instance leads, from its making until `release`, `close` or loss. Use `acquire` to get one."""

    def __init__(
        self,
        session: Session,
        name: str,
        lease: Lease,
        *,
        asked: Nanos,
        now: Nanos,
        term: Nanos,
        patience: Nanos,
        clock: Clock,
    ) -> None:
        self.name = name
        self.number = lease.leadership
        self.lost = threading.Event()
        """Set when it is lost. Whoever publishes must stop then."""
        self._session = session
        self._term = term
        self._clock = clock
        self._until = core.countdown(asked, Nanos(lease.expires - now), nanos(MARGIN))
        self._standstill = Standstill(patience)
        self._failure: NotLeading | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="strandline-lease", daemon=True)
        self._thread.start()

    def check(self, *, once: bool = False, sign: object | None = None) -> None:
        """Returns while we lead; raises NotLeading from then on. Asks nobody but our own clock.

        Whoever does not ask once only goes on asking: where it stops to, the lease is not renewed for it. Nor is it
        where a sign is given and stays the same while no task that sends in our name renews its leave to.
        """
        if not once:
            self._standstill.asks(sign, self._clock.monotonic())
        if self._failure is None and self._clock.monotonic() >= self._until:
            self._lose("its lease ran out before it could be renewed")
        if self._failure is not None:
            raise self._failure

    @property
    def left(self) -> Nanos:
        """For how long we lead without another word from Postgres."""
        return Nanos(max(0, self._until - self._clock.monotonic()))

    def _keep(self) -> None:
        while not self._ended.wait(min(self._term / 1e9 / AGAIN, AT_LEAST_EVERY)) and self._failure is None:
            try:
                self._renew()
            except PostgresError as error:
                self._lose(f"its session is lost: {error}")

    def _renew(self) -> None:
        asked = self._clock.monotonic()
        if (problem := self._standstill.problem(asked)) is not None:
            self._lose(problem)
            return
        renewed, now = change_lease(
            self._session, self.name, lambda found, now: core.renew(found, self.number, now=now, term=self._term)
        )
        if isinstance(renewed, Refused):
            self._lose(renewed.reason)
        else:
            self._until = core.countdown(asked, Nanos(renewed.expires - now), nanos(MARGIN))
            self._standstill.tasks((renewed.claim, renewed.granted), asked)

    def _lose(self, problem: str) -> None:
        self._failure = self._failure or NotLeading(self.name, problem)
        self.lost.set()

    def release(self) -> None:
        """Lead no more. The next can take over as soon as no task that sends for us holds a grant."""
        self._stop()
        try:
            if self._failure is None:
                change_lease(self._session, self.name, lambda found, now: core.release(found, self.number, now=now))
        except PostgresError:
            pass  # It runs out by itself.
        finally:
            self._lose("it was released")
            self._session.close()

    def close(self) -> None:
        """Let go of the lock without a word: the lease runs out by itself."""
        self._stop()
        self._lose("it was given up")
        self._session.close()

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join(ANSWER * 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire(
    dsn: str,
    name: str,
    holder: str,
    *,
    wait: timedelta,
    term: timedelta = TERM,
    patience: timedelta = PATIENCE,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> Leadership | None:
    """Wait until nobody else leads and lead; None when the time is over, or `stop` is set, before that.

    Who leads and gets no further for the time of our patience leads no more.
    """
    clock = clock or AwakeClock()
    stop = stop or threading.Event()
    deadline = time.monotonic() + wait.total_seconds()
    session = Session(dsn, timeout=ANSWER)
    try:
        while not stop.is_set():
            pause = _locked(session, name, deadline) and _take(
                session, name, holder, term=nanos(term), patience=nanos(patience), clock=clock
            )
            if isinstance(pause, Leadership):
                return pause
            if time.monotonic() >= deadline:
                break
            stop.wait(min(pause or 0.0, LOCK_WAIT, max(0.0, deadline - time.monotonic())))
    except PostgresError:
        session.close()
        raise
    session.close()
    return None


def _locked(session: Session, name: str, deadline: float) -> bool:
    """Whether the lock is ours. Where its holder stands still, its session is ended."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    if session.query("select from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"):
        return True
    patience = max(0.01, min(LOCK_WAIT, deadline - time.monotonic()))
    try:
        # For this statement alone: a leader must not give up because another session locks its row for longer.
        session.query(LOCK, f"{patience * 1_000:.0f}ms", key)
    except PostgresRefused as error:
        if error.code != "55P03":
            raise
        _, found, now = _read(session, name)
        # Who has just got the lock, and is about to lead, has had the time to.
        if found is not None and now > found.expires + STUCK and patience >= LOCK_WAIT:
            _end_holder(session, name, key)
        return False
    return True


def _end_holder(session: Session, name: str, key: int) -> None:
    try:
        session.query(STUCK_SESSION, key)
    except PostgresRefused as error:
        problem = f"who led '{name}' stands still and holds its lock, and its session cannot be ended: {error.problem}"
        raise SlotBusy(problem, "have all instances connect as one role, or GRANT pg_signal_backend to it") from None


def _take(
    session: Session, name: str, holder: str, *, term: Nanos, patience: Nanos, clock: Clock
) -> Leadership | float:
    """Lead, or for how many seconds to wait."""
    asked = clock.monotonic()
    taken, now = change_lease(session, name, lambda found, now: core.take(found, holder, now=now, term=term))
    if isinstance(taken, Refused):
        return (taken.wait or 0) / 1e9
    return Leadership(session, name, taken, asked=asked, now=now, term=term, patience=patience, clock=clock)
