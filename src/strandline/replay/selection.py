"""Requests that somebody chose, sent through the engine: each at its time, in the order of its connection.

They come in the order of their times and are not from a log, so nothing is committed: whoever chose them sends all of
them again where that fails.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from strandline.clock import Clock, SystemClock
from strandline.core.pacing import Pace
from strandline.replay.encoding import encode_result
from strandline.replay.engine import Engine
from strandline.replay.health import WhenDown
from strandline.replay.limits import Limits
from strandline.replay.outcomes import outcome_of
from strandline.replay.results import WIDEST
from strandline.replay.retries import DefaultRetry
from strandline.replay.target import Target
from strandline.replay.transforms import Transform
from strandline.replay.work import Work
from strandline.units import Nanos
from strandline.wire.answers import Answer
from strandline.wire.head import NAME_SIGN, VALUE_SIGN, WORD
from strandline.wire.transactions import Cause, ConnectionKey, Record, Transaction

AHEAD = Nanos(10 * 1_000_000_000)
"""How far ahead of their time requests are taken."""
TICK = 0.02
AT_ONCE = 200
"""How many requests are taken before others have their turn."""
FRAMING = frozenset({"content-length", "transfer-encoding", "trailer"})
METHOD, PATH, QUERY, NAME, VALUE = f"{WORD}+", f"{WORD}+", f"{WORD}*", f"{NAME_SIGN}+", f"{VALUE_SIGN}*"
"""What each part of a request is to match as a whole."""
LINE_PROBLEM = "a method, a path and a query are latin-1, without spaces and control characters"
HEADER_PROBLEM = "a header has a name without spaces and colons, and a value in latin-1 without line ends"


class Chosen(NamedTuple):
    """A request to send."""

    key: ConnectionKey
    at: Nanos
    method: bytes
    head: bytes
    body: bytes
    answer: Answer | None
    """What the source answered, where that is known."""
    partition: int
    offset: int
    ordinal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Where to, and when."""

    target: Target
    reference: Nanos
    """The source time that is `begin` on the wall."""
    begin: Nanos
    speed: Fraction
    when_down: WhenDown = WhenDown.PAUSE
    limits: Limits = field(default_factory=Limits)


def request_head(method: str, path: str, query: str | None, headers: Mapping[str, Sequence[str]], body: bytes) -> bytes:
    """The head of a request. Raises ValueError where it would not be read as what it is."""
    words = ((METHOD, method), (PATH, path), (QUERY, query or ""))
    if not all(re.fullmatch(pattern, word) for pattern, word in words):
        raise ValueError(LINE_PROBLEM)
    target = path if query is None else f"{path}?{query}"
    return head_of(f"{method} {target} HTTP/1.1", headers, body)


def head_of(first_line: str, headers: Mapping[str, Sequence[str]], body: bytes) -> bytes:
    """A head for a body in one piece; the framing that it had is left out. Raises ValueError."""
    lines = [first_line]
    for name, values in headers.items():
        if not re.fullmatch(NAME, name) or not all(re.fullmatch(VALUE, value) for value in values):
            raise ValueError(HEADER_PROBLEM)
        if name.lower() not in FRAMING:
            lines += [f"{name}: {value}" for value in values]
    if body or first_line.startswith(("POST ", "PUT ", "PATCH ")):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def send_chosen(
    batches: Iterator[Sequence[Chosen]], sending: Sending, tell: Callable[[bytes], None], clock: Clock | None = None
) -> None:
    """Send all of them, and tell each result as JSON. Raises what makes it impossible to go on."""
    clock = clock or SystemClock()
    to_wall = Nanos(clock.wall() - clock.monotonic())

    def finish(work: Work) -> None:
        tell(encode_result(outcome_of(work, to_wall=to_wall, keep=WIDEST.body)))
        work.spool.release()

    engine = Engine(
        sending.target,
        finish,
        transform=Transform(sending.target.authority),
        policy=DefaultRetry(),
        reference=Pace(sending.reference, Nanos(sending.begin - to_wall), sending.speed),
        when_down=sending.when_down,
        limits=sending.limits,
        clock=clock,
    )
    try:
        await _feed(engine, batches, clock)
    finally:
        engine.close()


async def _feed(engine: Engine, batches: Iterator[Sequence[Chosen]], clock: Clock) -> None:
    connections: set[tuple[int, ConnectionKey]] = set()
    last = Nanos(0)
    taken = 0
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for chosen in batch:
            taken += 1
            if not taken % AT_ONCE:
                await asyncio.sleep(0)
            while engine.timeline.due(chosen.at) - clock.monotonic() > AHEAD or _is_full(engine):
                engine.check()
                await asyncio.sleep(TICK)
            engine.on_request(_transaction(engine, chosen))
            connections.add((chosen.partition, chosen.key))
            last = chosen.at
    for partition, key in connections:
        engine.on_close(key, partition, last, Cause.CLOSED)
    while engine.is_busy or engine.works:
        engine.check()
        await asyncio.sleep(TICK)
    engine.check()


def _is_full(engine: Engine) -> bool:
    return engine.waiting_bytes > engine.limits.memory


def _transaction(engine: Engine, chosen: Chosen) -> Transaction:
    """As the accumulator would have made it of a record that has the request and its answer."""
    record = Record(chosen.partition, chosen.offset, 0, _let_go)
    record.begun = chosen.ordinal
    transaction = Transaction(chosen.key, record, engine.spools.make(), chosen.at)
    transaction.packets.add(chosen.at, chosen.head + chosen.body)
    transaction.head, transaction.method = chosen.head, chosen.method
    transaction.is_complete = transaction.is_answered = True
    transaction.answer = chosen.answer
    return transaction


def _let_go(record: Record) -> None:
    """Nothing is committed."""
