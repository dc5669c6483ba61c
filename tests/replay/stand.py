"""An engine and its accumulator, fed with records of any partition and generation, without Kafka."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from strandline.replay.engine import Engine
from strandline.replay.retries import DefaultRetry
from strandline.replay.target import Target
from strandline.replay.transforms import Transform
from strandline.replay.work import Work
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Record
from tests.replay.support import Server
from tests.support import TIMEOUT


class Stand:
    """What was finished, and which records were let go, is kept."""

    def __init__(self, target: Target, kind: type[Engine], changes: dict[str, Any]) -> None:
        given = {"transform": Transform(target.authority), "policy": DefaultRetry(), **changes}
        self.finish = self._keep
        """What becomes of a request of which all is known."""
        self.engine = kind(target, self._finish, **given)
        spools = self.engine.spools
        self.accumulator = Accumulator(
            self.engine, spools.make, expire_after=Nanos(10**11), keep=self.engine.keep, count=spools.count
        )
        self.finished: list[Work] = []
        self._offset = 0

    def feed(self, records: Iterable[bytes], partition: int = 0, generation: int = 1) -> None:
        """Records come."""
        for value in records:
            record = Record(partition, self._offset, generation, lambda _: None)
            self._offset += 1
            self.accumulator.accept(record, TrafficStream.FromString(value))
        self.accumulator.settle(partition)

    def _finish(self, work: Work) -> None:
        self.finish(work)

    def _keep(self, work: Work) -> None:
        self.finished.append(work)
        work.spool.release()
        work.transaction.release()

    @property
    def paths(self) -> list[str]:
        """Of the finished requests."""
        return [work.transaction.head.split(b" ", 2)[1].decode() for work in self.finished]


@asynccontextmanager
async def standing(target: Server | Target, kind: type[Engine] = Engine, **changes: Any) -> AsyncIterator[Stand]:
    """An engine in front of a target; it is closed at the end."""
    place = Target(f"http://127.0.0.1:{target.port}") if isinstance(target, Server) else target
    stand = Stand(place, kind, changes)
    try:
        async with asyncio.timeout(TIMEOUT):
            yield stand
    finally:
        stand.engine.close()
