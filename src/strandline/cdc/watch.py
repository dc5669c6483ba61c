"""What whoever watches an instance of `strandline cdc` can see: metrics, whether it is ready, and spans of epochs."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

from strandline.cdc.config import CdcConfig
from strandline.cdc.figures import Listening
from strandline.cdc.lease import Leadership
from strandline.cdc.metrics import CdcMetrics
from strandline.cdc.session import Session
from strandline.cdc.slot import look
from strandline.errors import ConnectionLost, PostgresError, PostgresUnreachable
from strandline.observe import Observed, configured_tracer
from strandline.units import Nanos

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SCOPE = "strandline.cdc"
LOOK_EVERY = 2.0
JOIN_WITHIN = 15.0


class Watch:
    """Watches while it is entered: serves the pages where the file asks for them, and looks at the slot for them."""

    def __init__(self, config: CdcConfig, tracer: "Tracer | None" = None) -> None:
        self._config = config
        self._tracer = tracer or configured_tracer(SCOPE)
        self._metrics = CdcMetrics()
        self._listening: Listening | None = None
        self._open = ExitStack()
        self._ended = threading.Event()
        self._problem: str | None = "it has not begun"
        self._leadership = 0
        self.address: str | None = None
        """Where the pages are."""

    @property
    def figures(self) -> str | None:
        """Where the sink tells what became of each epoch."""
        return None if self._listening is None else self._listening.place

    @contextmanager
    def leading(self, leadership: Leadership) -> Iterator[None]:
        """While we lead."""
        self._metrics.led(leadership)
        self._leadership = leadership.number
        self._problem = "Spark starts, or the rows that are there are sent first"
        try:
            yield
        finally:
            self._metrics.led(None)

    def waits(self, problem: str | None) -> None:
        """Another leads, or nobody can for a reason."""
        self._problem = problem

    def epoch(self, progress: Mapping[str, Any]) -> None:
        """An epoch as Spark tells it."""
        self._problem = None
        took = Nanos(int(progress["durationMs"].get("triggerExecution", 0)) * 1_000_000)
        self._metrics.epoch(took)
        if self._tracer is not None:
            begun = int(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1e6) * 1_000
            attributes = {
                "strandline.epoch": progress["batchId"],
                "strandline.changes": progress["numInputRows"],
                "strandline.leadership": self._leadership,
            }
            self._tracer.start_span("epoch", start_time=begun, attributes=attributes).end(begun + took)

    def __enter__(self) -> Self:
        at = self._config.observed_at()
        if at is not None:
            registry = CollectorRegistry()
            registry.register(self._metrics)
            pages = Observed(*at, registry, self._not_ready)
            self._listening = self._open.enter_context(Listening(self._metrics.delivered))
            self.address = self._open.enter_context(pages).address
            thread = threading.Thread(target=self._look, name="strandline-watch", daemon=True)
            thread.start()
            self._open.callback(thread.join, JOIN_WITHIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._open.close()

    def _not_ready(self) -> list[str]:
        return [] if self._problem is None else [self._problem]

    def _look(self) -> None:
        """Ask Postgres for the slot, again and again, in a session that is made anew when it is lost."""
        session: Session | None = None
        while not self._ended.is_set():
            try:
                session = session or Session(self._config.postgres.url())
                self._metrics.looked(look(session, self._config.postgres.slot), reachable=True)
            except (ConnectionLost, PostgresUnreachable):
                if session is not None:
                    session.close()
                session = None
                self._metrics.looked(None, reachable=False)
            except PostgresError:
                # It has answered: the slot is lost, or none that can be read.
                self._metrics.looked(None, reachable=True)
            self._ended.wait(LOOK_EVERY)
        if session is not None:
            session.close()
