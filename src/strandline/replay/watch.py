"""What whoever watches a replay can ask for: its metrics, whether it is ready, and its status."""

from collections import deque

import msgspec
from prometheus_client import CollectorRegistry

from strandline.observe import Observed
from strandline.replay.metrics import ReplayCollector
from strandline.replay.replay import Replay
from strandline.replay.status import NOT_BEGUN, Status, status_of

STATUS = "/status"
SAMPLES = 40
"""How many readings the rate is taken over."""


class Watch:
    """Looks at a replay; `sample` is called a few times a second, all else from any thread."""

    def __init__(self, run: Replay) -> None:
        self._run = run
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)

    def pages(self, host: str, port: int) -> Observed:
        """The pages to serve. Raises StrandlineError where they cannot be."""
        registry = CollectorRegistry()
        registry.register(ReplayCollector(self._run))
        return Observed(host, port, registry, self.not_ready, {STATUS: lambda: msgspec.json.encode(self.status())})

    def sample(self) -> None:
        """Note how many requests have been sent by now."""
        self._samples.append((self._run.clock.monotonic(), self._run.engine.counters.sent))

    def not_ready(self) -> list[str]:
        """Why nothing is replayed."""
        if not self._run.is_running:
            return ["the replay has not begun"]
        reasons = [] if self._run.member.progress.owned() else ["no partition is assigned"]
        return [*reasons, *sorted(reason.value for reason in self._run.engine.leave.against)]

    def status(self, *, with_detail: bool = True) -> Status:
        """How far it is; with what the oldest request of each partition waits for, at the cost of a look at all."""
        run = self._run
        if not run.is_running:
            return NOT_BEGUN
        return status_of(
            run.engine,
            run.accumulator,
            run.member.progress,
            frontiers=run.member.frontiers(),
            ends=run.member.ends(),
            read_to=run.read_to,
            unsafe=run.output.unsafe,
            per_second=self._per_second(),
            with_detail=with_detail,
        )

    def _per_second(self) -> float | None:
        readings = list(self._samples)
        if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
            return None
        (began, before), (now, sent) = readings[0], readings[-1]
        return (sent - before) * 1e9 / (now - began)
