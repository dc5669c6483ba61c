"""Several processes of a proxy on the same ports, and what holds for all of them together."""

import asyncio
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Self

from strandline.proxy.cluster import Cluster
from strandline.proxy.messages import (
    MOST_KNOWN,
    ClusterState,
    FromWorker,
    Known,
    Reload,
    Reloaded,
    Start,
    State,
    from_worker,
)
from strandline.proxy.metrics import Counts
from strandline.proxy.server import BOOTSTRAP, Settings, refuse_what_does_not_fit
from strandline.workers.crew import Crew, reserve

if TYPE_CHECKING:
    from socket import socket

WORKER = "strandline.proxy.worker"
# On top of the time that clients have.
END_S = 5.0
RELOAD_S = 60.0


class Supervisor:
    """Runs while it is entered: from when all workers serve until all have ended."""

    def __init__(self, settings: Settings, text: bytes, file: Path) -> None:
        """`text` is what the file held; workers read it in the same way."""
        self._settings = settings
        self._text = text
        self._file = str(file.resolve())
        self._crew = Crew(self, WORKER, settings.workers, from_worker.decode, drain_s=settings.drain_s + END_S)
        self._states: dict[int, State] = {}
        self._ended = Counts()
        """What those have counted that are no more."""
        self._known: dict[str, bytes] = {}
        """What the clusters last told of their topics, for a worker that begins while one is down."""
        self._reloads = count(1)
        self._taking_up: dict[int, int] = {}
        """Workers that have yet to say that they serve by a Reload, and its number."""
        self._taken_up = asyncio.Event()
        self._port: socket | None = None

    async def __aenter__(self) -> Self:
        # Who is there twice is told so. Ports of brokers are the workers' own: they come and go.
        self._port = reserve(self._settings.host, self._settings.bootstrap_port, BOOTSTRAP)
        try:
            await self._crew.__aenter__()
        except BaseException:
            self._port.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._crew.__aexit__()
        if self._port is not None:
            self._port.close()

    async def wait(self, stop: asyncio.Event) -> None:
        """Serve until somebody says stop; raises where what keeps the workers has failed."""
        await self._crew.wait(stop)

    async def reload(self, settings: Settings, text: bytes) -> list[str]:
        """Have all workers serve by other settings, which `text` has come to here already; what was late.

        A worker that cannot take them up ends, and the one after it begins with them.
        """
        self._settings.refuse_to_move(settings)
        await self._refuse_what_does_not_fit(settings)
        self._settings, self._text = settings, text
        self._known = {name: told for name, told in self._known.items() if name in settings.clusters}
        number = next(self._reloads)
        self._taken_up.clear()
        self._taking_up = dict.fromkeys(self._crew.tell_all(Reload(number, text)), number)
        self._look_whether_all_have()
        try:
            async with asyncio.timeout(RELOAD_S):
                await self._taken_up.wait()
        except TimeoutError:
            return [f"worker {worker} has not taken it up within {RELOAD_S:g} s" for worker in self._taking_up]
        return []

    async def _refuse_what_does_not_fit(self, settings: Settings) -> None:
        # A worker that found it out would end, and so would the one after it.
        new = {name: Cluster(name, given, settings.limits[name]) for name, given in settings.clusters.items()}
        try:
            await refuse_what_does_not_fit(new, settings.blocks)
        finally:
            for cluster in new.values():
                cluster.close()

    def not_ready(self) -> list[str]:
        """Why not everything can be served: clusters that do not answer a worker, or that there is no worker."""
        serving = self._serving()
        if not serving:
            return ["no worker serves"]
        return [
            f"worker {worker}: cluster {name} does not answer"
            for worker, state in serving.items()
            for name, cluster in state.clusters.items()
            if not cluster.is_up
        ]

    def state(self) -> State:
        """How all of them are, those included that are no more. A cluster is up that answers every worker."""
        counts = Counts()
        counts.add(self._ended.counted())
        states = list(self._serving().values())
        clusters: dict[str, ClusterState] = {}
        for state in states:
            counts.add(state.counted)
            for name, found in state.clusters.items():
                known = clusters.get(name, found)
                clusters[name] = found if known.is_up else known
        return State(sum(state.connections for state in states), clusters, counts.counted(), len(states))

    def _serving(self) -> dict[int, State]:
        known = self._states.copy()
        return {number: known[number] for number in self._crew.serving() if number in known}

    # What the crew tells and asks.

    def first(self, number: int) -> Start:
        """What a new worker is told."""
        return Start(number, self._text, self._file, self._known)

    def heard(self, number: int, message: FromWorker) -> None:
        """A worker tells how it is."""
        match message:
            case State():
                self._states[number] = message
            case Known(cluster=cluster, topics=topics) if cluster in self._settings.clusters:
                others = sum(len(told) for name, told in self._known.items() if name != cluster)
                if others + len(topics) <= MOST_KNOWN:
                    self._known[cluster] = topics
                else:
                    # An older list is no better than none: topics may be gone that are in it.
                    self._known.pop(cluster, None)
            case Reloaded(number=reload) if self._taking_up.get(number) == reload:
                del self._taking_up[number]
                self._look_whether_all_have()

    def gone(self, number: int) -> None:
        """What a worker has counted is kept; the one after it begins with what all serve by."""
        state = self._states.pop(number, None)
        if state is not None:
            self._ended.add(state.counted)
        self._taking_up.pop(number, None)
        self._look_whether_all_have()

    def _look_whether_all_have(self) -> None:
        if not self._taking_up:
            self._taken_up.set()
