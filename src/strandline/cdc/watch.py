"""What whoever watches an instance of `strandline cdc` can see.

Metrics, whether it is ready, spans of epochs, and lines about dead letters.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

from strandline.cdc.config import CdcConfig
from strandline.cdc.figures import Figures, Listening
from strandline.cdc.lease import Leadership
from strandline.cdc.metrics import CdcMetrics
from strandline.cdc.session import Session
from strandline.cdc.slot import look
from strandline.cdc.snapshot_record import snapshot_state
from strandline.clock import SystemClock
from strandline.core.letters import Letters
from strandline.errors import ConnectionLost, OptionError, PostgresError, PostgresUnreachable
from strandline.observe import Observed, configured_tracer
from strandline.units import Nanos, nanos

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SCOPE = "strandline.cdc"
LOOK_EVERY = 2.0
JOIN_WITHIN = 15.0
TELL_EVERY = nanos(timedelta(seconds=10))

log = logging.getLogger(__name__)
clock = SystemClock()


class Watch:
    """Watches while it is entered: serves the pages where the file asks for them, and looks at the slot for them.

    Its making opens nothing.
    """

    def __init__(self, config: CdcConfig, tracer: "Tracer | None" = None) -> None:
        self._config = config
        self._tracer = tracer or configured_tracer(SCOPE)
        self._metrics = CdcMetrics()
        self._listening = Listening(self._heard, lambda: self._tell_letters(clock.monotonic()))
        self._letters = Letters("nowhere" if config.dead_letters is None else config.dead_letters.place, TELL_EVERY)
        self._open = ExitStack()
        self._ended = threading.Event()
        self._problem: str | None = "it has not begun"
        self._leadership = 0
        self.address: str | None = None
        """Where the pages are."""

    @property
    def figures(self) -> str:
        """Where the sink tells what became of each epoch."""
        return self._listening.place

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
        with ExitStack() as opened:
            opened.callback(self._tell_letters, None)
            opened.enter_context(self._listening)
            if at is not None:
                registry = CollectorRegistry()
                registry.register(self._metrics)
                pages = Observed(*at, registry, self._not_ready, setting="observe in the file")
                self.address = opened.enter_context(pages).address
                thread = threading.Thread(target=self._look, name="strandline-watch", daemon=True)
                thread.start()
                opened.callback(thread.join, JOIN_WITHIN)
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._open.close()

    def _heard(self, figures: Figures) -> None:
        self._metrics.delivered(figures)
        self._letters.add(figures.dead_lettered, figures.first_letter)

    def _tell_letters(self, now: Nanos | None) -> None:
        if (line := self._letters.line(now)) is not None:
            log.warning("%s", line)

    def _not_ready(self) -> list[str]:
        return [] if self._problem is None else [self._problem]

    def _look(self) -> None:
        """Ask Postgres for the slot, again and again, in a session that is made anew when it is lost."""
        session, slot = None, self._config.postgres.slot
        while not self._ended.is_set():
            try:
                session = session or Session(self._config.postgres.url())
                found = look(session, slot), snapshot_state(session, slot)
                self._metrics.looked(*found, reachable=True)
            except (ConnectionLost, PostgresUnreachable):
                if session is not None:
                    session.close()
                session = None
                self._metrics.looked(None, reachable=False)
            except PostgresError:
                # It has answered: the slot is lost, or none that can be read.
                self._metrics.looked(None, reachable=True)
            except OptionError:
                # Nobody can be asked at all. Whoever begins to work is told so.
                return
            self._ended.wait(LOOK_EVERY)
        if session is not None:
            session.close()
