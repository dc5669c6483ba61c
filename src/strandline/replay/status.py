"""How far a replay is: for each partition the frontier, the oldest unfinished transaction, and what it waits for.

Made from snapshots, by a thread that is not the engine's: what changes meanwhile may be told a moment late.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from strandline.core.oldest import Oldest
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.replay.engine import Engine
from strandline.replay.session import Phase
from strandline.replay.timeline import date_of
from strandline.replay.work import Work
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.transactions import Transaction

EARLIER = "the requests before it on its connection"
REST = "the rest of the request"
SUCCESSOR = "what follows it in the capture"
UNREAD = "its turn to be put together"
RESULT = "its result to be safe"
NOT_LOOKED_UP = "what is not looked up while so much waits"
GIVEN_UP = "nothing any more; it stays uncommitted"


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """What holds a partition's frontier."""

    offset: int
    """The record."""
    age_s: float
    """How long it has been in flight."""
    waits_for: str
    id: str | None = None
    """The oldest transaction that has a byte of it, if there is one still."""
    connection: str | None = None
    due_in_s: float | None = None
    """How long until its time, where it waits for that."""


class PartitionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How far a partition is."""

    topic: str
    partition: int
    frontier: int | None
    """The offset to commit, None while it is unknown."""
    end: int | None
    lag: int | None
    in_flight: int
    """Records."""
    oldest: Unfinished | None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How far a replay is."""

    clock: str
    """`runs`, `has not begun`, or why nothing is sent."""
    requests: int = 0
    """Sent, failed, or read and to be sent here; not those that were given back with their partition."""
    sent: int = 0
    per_second: float | None = None
    """Requests sent, over the last seconds."""
    source_time: datetime | None = None
    late_p50_ms: float = 0.0
    late_p99_ms: float = 0.0
    on_their_way: int = 0
    """Exchanges with the target."""
    waiting: int = 0
    """Requests that are read and not finished."""
    failed: int = 0
    unsafe: int = 0
    """Results that are not safe yet."""
    partitions: list[PartitionStatus] = []


NOT_BEGUN = Status(clock="has not begun")


def status_of(
    engine: Engine,
    accumulator: Accumulator,
    progress: Progress,
    *,
    frontiers: Mapping[Partition, int],
    ends: Mapping[Partition, int],
    read_to: Mapping[Partition, int],
    unsafe: int,
    per_second: float | None = None,
    with_detail: bool = True,
) -> Status:
    """What there is to tell."""
    now = engine.clock.monotonic()
    owned = sorted(progress.owned())
    works = engine.works if with_detail else []
    held = {partition: progress.oldest(partition, now) for partition in owned}
    holders = _holders({p.number: oldest.position for p, oldest in held.items() if oldest is not None}, works)
    partitions = []
    for partition in owned:
        frontier, end, oldest = frontiers.get(partition), ends.get(partition), held[partition]
        unfinished = None
        if oldest is not None and not with_detail:
            unfinished = Unfinished(offset=oldest.position, age_s=oldest.age / 1e9, waits_for=NOT_LOOKED_UP)
        elif oldest is not None:
            work = holders.get(partition.number)
            holder = _holder(partition.number, oldest.position, work, engine, accumulator)
            if holder is not None:
                unfinished = _told(oldest, *holder)
            else:
                is_read = oldest.position < read_to.get(partition, 0)
                # Its transactions are finished, or what it holds was given up.
                waits_for = UNREAD if not is_read else RESULT if unsafe else GIVEN_UP
                unfinished = Unfinished(offset=oldest.position, age_s=oldest.age / 1e9, waits_for=waits_for)
        partitions.append(
            PartitionStatus(
                topic=partition.topic,
                partition=partition.number,
                frontier=frontier,
                end=end,
                lag=None if frontier is None or end is None else max(0, end - frontier),
                in_flight=progress.in_flight(partition),
                oldest=unfinished,
            )
        )
    reached, late, against = engine.timeline.reached(), engine.counters.lateness, engine.leave.against
    return Status(
        clock=", ".join(sorted(reason.value for reason in against)) or ("has not begun" if reached is None else "runs"),
        requests=engine.counters.ours,
        sent=engine.counters.sent,
        per_second=per_second,
        source_time=date_of(engine.timeline.shown()),
        late_p50_ms=late.quantile(0.5) / 1e6,
        late_p99_ms=late.quantile(0.99) / 1e6,
        on_their_way=engine.in_flight,
        waiting=engine.waiting,
        failed=engine.counters.failed,
        unsafe=unsafe,
        partitions=partitions,
    )


def _holders(wanted: Mapping[int, int], works: Iterable[Work]) -> dict[int, Work]:
    """By partition, the oldest request that is told of and has a byte of the wanted record."""
    found: dict[int, Work] = {}
    for work in works:
        number = work.transaction.record.partition
        offset = wanted.get(number)
        if offset is not None and _has(work.transaction, offset):
            other = found.get(number)
            if other is None or _place(work.transaction) < _place(other.transaction):
                found[number] = work
    return found


def _has(transaction: Transaction, offset: int) -> bool:
    records = transaction.records
    return records[0].offset <= offset <= records[-1].offset and any(record.offset == offset for record in records)


def _place(transaction: Transaction) -> tuple[int, int]:
    return transaction.record.offset, transaction.ordinal


def _holder(
    partition: int, offset: int, work: Work | None, engine: Engine, accumulator: Accumulator
) -> tuple[Transaction, str, float | None] | None:
    """The oldest transaction that has a byte of a record, what it waits for, and how long where that is known."""
    if work is not None:
        return work.transaction, *_waits_for(work, engine)
    untold = (found for found in accumulator.untold(partition) if _has(found[0], offset))
    first = min(untold, key=lambda found: _place(found[0]), default=None)
    return None if first is None else (first[0], SUCCESSOR if first[1] else REST, None)


def _told(oldest: Oldest[int], transaction: Transaction, waits_for: str, due_in: float | None) -> Unfinished:
    return Unfinished(
        offset=oldest.position,
        age_s=oldest.age / 1e9,
        id=transaction.id,
        connection=str(transaction.key),
        waits_for=waits_for,
        due_in_s=due_in,
    )


def _waits_for(work: Work, engine: Engine) -> tuple[str, float | None]:
    """What a request waits for, and for how long where that is known."""
    if work.is_over:
        return Phase.UNDECIDED.value, None
    session = engine.session_of(work.transaction)
    if session is None or session.head is not work:
        return EARLIER, None
    phase = session.phase
    if phase is Phase.WAITING:
        return phase.value, Nanos(work.due - engine.clock.monotonic()) / 1e9
    if phase is Phase.PARKED:
        return ": ".join([phase.value, *sorted(reason.value for reason in engine.leave.against)]), None
    return phase.value, None
