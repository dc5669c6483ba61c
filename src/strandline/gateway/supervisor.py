"""Several processes of a gateway on one port, and what holds for all of them together."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import msgspec

from strandline.gateway.arbiter import Arbiter
from strandline.gateway.config import LISTEN
from strandline.gateway.limits import Limits
from strandline.gateway.messages import Counts, FromWorker, Start, State, from_worker
from strandline.workers.crew import Crew, reserve

if TYPE_CHECKING:
    from socket import socket

DRAIN_S = 20.0
WORKER = "strandline.gateway.worker"


class Supervisor:
    """Runs while it is entered: from when all workers serve until all have ended."""

    def __init__(self, start: Start, limits: Limits, workers: int) -> None:
        """`start` is what every worker is told, but for its number and the real port."""
        self._start = start
        self._arbiter = Arbiter(limits, asyncio.get_running_loop().time)
        self._crew = Crew(self, WORKER, workers, from_worker.decode, drain_s=DRAIN_S)
        self._states: dict[int, State] = {}
        self._ended = Counts()
        """What those have counted that are no more."""
        self._port: socket | None = None

    @property
    def port(self) -> int:
        """The real one, when 0 was asked for."""
        return self._start.port

    async def __aenter__(self) -> Self:
        self._port = reserve(self._start.host, self._start.port, LISTEN)
        self._start = msgspec.structs.replace(self._start, port=self._port.getsockname()[1])
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

    def not_ready(self) -> list[str]:
        """What stands in the way of serving: the trouble of those who take connections, or that there are none."""
        serving = self._serving()
        if not serving:
            return ["no worker serves"]
        return [f"worker {number}: {trouble}" for number, state in serving.items() for trouble in state.trouble]

    def state(self) -> tuple[State, int]:
        """How all of them are, those included that are no more, and how many serve."""
        counts = replace(self._ended)
        states = list(self._serving().values())
        for state in states:
            counts.add(state.counts)
        total = State(
            counts=counts,
            open_connections=sum(state.open_connections for state in states),
            partitions=max((state.partitions for state in states), default=0),
            recent_bytes=sum(state.recent_bytes for state in states),
            lag=max((state.lag for state in states), default=0.0),
            trouble=self.not_ready(),
            replays=self._arbiter.replays(),
        )
        return total, len(states)

    def _serving(self) -> dict[int, State]:
        nothing = State(Counts(), 0, 0, 0, 0.0, [])
        return {number: self._states.get(number, nothing) for number in self._crew.serving()}

    # What the crew tells and asks.

    def first(self, number: int) -> Start:
        """What a new worker is told."""
        return msgspec.structs.replace(self._start, number=number)

    def heard(self, number: int, message: FromWorker) -> None:
        """A worker tells how it is, or asks for something."""
        if isinstance(message, State):
            self._states[number] = message
        self._arbiter.heard(number, message, lambda answer: self._crew.tell(number, answer))

    def gone(self, number: int) -> None:
        """What a worker has counted is kept, what it held is free."""
        state = self._states.pop(number, None)
        if state is not None:
            self._ended.add(state.counts)
        self._arbiter.gone(number)
