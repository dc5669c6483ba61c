"""OpenTelemetry spans of a replay: one for each source connection, and below it one for each transaction.

The span of a transaction is made when the transaction comes to an end, whichever end it is, with the times that it
had; so none is ever left open, and requests that are read ahead carry none. The span of a connection ends with its
session. Without a configured SDK the plain engine runs, and nothing of this is called.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from strandline.replay.engine import UNSENT, Engine, spool_of
from strandline.replay.retries import verdict
from strandline.replay.session import Place, Session, place_of
from strandline.replay.work import Work
from strandline.units import Nanos
from strandline.wire.transactions import Cause, Transaction

if TYPE_CHECKING:
    from opentelemetry.context import Context

SCOPE = "strandline.replay"
GIVEN_UP = "given up: the replay was stopped, or the partition went to another member"


class TracedEngine(Engine):
    """An engine that tells of all it does by spans."""

    def trace_to(self, tracer: Tracer) -> None:
        """Where spans go; to be called first."""
        self._tracer = tracer
        self._to_wall = self.clock.wall() - self.clock.monotonic()
        self._connections: dict[Place, tuple[Span, int]] = {}
        """Each with when it began, which may lie ahead: requests are read before their time."""
        self._parents: dict[Transaction, Context] = {}
        """Of the transactions that have not come to an end."""

    def _session_for(self, transaction: Transaction) -> Session:
        session = super()._session_for(transaction)
        if session.place not in self._connections:
            begin = max(self.timeline.due(transaction.began), self.clock.monotonic()) + self._to_wall
            span = self._tracer.start_span(
                "connection",
                start_time=begin,
                attributes={
                    "strandline.connection": transaction.key.connection,
                    "strandline.node": transaction.key.node,
                    "strandline.partition": transaction.record.partition,
                    "strandline.generation": transaction.record.generation,
                },
            )
            self._connections[session.place] = span, begin
        self._adopt(transaction)
        return session

    def on_unsent(self, transaction: Transaction, cause: Cause) -> None:
        self._adopt(transaction)
        self._tell(Work(transaction, spool_of(transaction), error=UNSENT.get(cause, GIVEN_UP)))
        super().on_unsent(transaction, cause)

    def _adopt(self, transaction: Transaction) -> None:
        connection = self._connections.get(place_of(transaction))
        if connection is not None:
            self._parents[transaction] = trace.set_span_in_context(connection[0])

    def _finished(self, work: Work) -> None:
        self._tell(work)
        super()._finished(work)

    def gone(self, session: Session, left: Iterable[Work], unsent: int = 0) -> None:
        undone = list(left)
        for work in undone:
            work.error = work.error or GIVEN_UP
            self._tell(work)
        super().gone(session, undone, unsent)
        span, begin = self._connections.pop(session.place)
        span.end(max(begin, self._now()))

    def close(self) -> None:
        super().close()
        for transaction in list(self._parents):
            # The target's part is over; the source's answer will not be known any more.
            work = self._works.get(transaction) or Work(transaction, spool_of(transaction))
            work.error = work.error or GIVEN_UP
            self._tell(work)

    def _now(self) -> int:
        return self.clock.monotonic() + self._to_wall

    def _tell(self, work: Work) -> None:
        """A transaction has come to an end."""
        transaction, now = work.transaction, self._now()
        begin = work.attempts[0].sent + self._to_wall if work.attempts else min(now, (work.due or now) + self._to_wall)
        span = self._tracer.start_span(
            transaction.method.decode("latin-1") if transaction.head else "request",
            context=self._parents.pop(transaction, None),
            kind=SpanKind.CLIENT,
            start_time=begin,
            attributes=attributes_of(work),
        )
        if work.error is not None:
            span.set_status(Status(StatusCode.ERROR, work.error))
        span.end(max(begin, work.attempts[-1].ended + self._to_wall if work.attempts else now))


def attributes_of(work: Work) -> dict[str, str | int | float | bool]:
    """What a span says of a transaction; of its contents only the method and the answers' status."""
    transaction = work.transaction
    source, target = transaction.answer, work.answer
    told: dict[str, str | int | float | bool | None] = {
        "strandline.id": transaction.id,
        "strandline.connection": transaction.key.connection,
        "strandline.node": transaction.key.node,
        "strandline.generation": transaction.record.generation,
        "http.request.method": transaction.method.decode("latin-1"),
        "http.response.status_code": None if target is None else target.status,
        "strandline.source.status_code": None if source is None else source.status,
        "strandline.attempts": len(work.attempts),
        "strandline.lateness_ms": _lateness(work),
        "strandline.verdict": verdict(source, target).value if work.is_over and transaction.is_answered else None,
        "error.message": work.error,
    }
    return {name: value for name, value in told.items() if value is not None}


def _lateness(work: Work) -> float | None:
    return Nanos(work.attempts[0].sent - work.due) / 1e6 if work.attempts else None
