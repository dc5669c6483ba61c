"""What a status says that the oldest unfinished transaction of a partition waits for."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from strandline.clock import SystemClock
from strandline.kafka.partition import Partition
from strandline.kafka.progress import Progress
from strandline.replay.engine import Engine
from strandline.replay.retries import DefaultRetry
from strandline.replay.status import GIVEN_UP, REST, RESULT, SUCCESSOR, UNREAD, Status, Unfinished, status_of
from strandline.replay.target import Target
from strandline.replay.transforms import Transform
from strandline.replay.work import Work
from strandline.units import Nanos
from strandline.wire.accumulator import Accumulator
from strandline.wire.traffic import Recording
from strandline.wire.traffic_pb2 import TrafficStream
from strandline.wire.transactions import Record
from tests.replay.support import BEGIN, MS, OK, Peer, get, post, serving
from tests.support import TIMEOUT

if TYPE_CHECKING:
    from strandline.kafka.claim import Claim

PLACE = Partition("traffic", 3)


class Stand:
    """An engine, its accumulator and the progress of one partition, without Kafka."""

    def __init__(self, url: str) -> None:
        target = Target(url)
        self.engine = Engine(
            target, self._finish, transform=Transform(target.authority), policy=DefaultRetry(), clock=SystemClock()
        )
        self.accumulator = Accumulator(self.engine, self.engine.spools.make, expire_after=Nanos(10**11))
        self.progress = Progress()
        self.generation = self.progress.assign([PLACE])
        self.finished: list[Work] = []
        self._claims: dict[int, Claim] = {}
        self._next = 40
        self.read_to = 40
        self.recording = Recording("node", "one")

    def _finish(self, work: Work) -> None:
        self.finished.append(work)

    def register(self) -> int:
        """A record has been taken from Kafka."""
        offset, self._next = self._next, self._next + 1
        self._claims[offset] = self.progress.register(PLACE, offset, self.engine.clock.monotonic())
        return offset

    def feed(self) -> None:
        """The records of what was recorded are put together."""
        for value in self.recording.take():
            record = Record(PLACE.number, self.register(), self.generation, self._free)
            self.accumulator.accept(record, TrafficStream.FromString(value))
            self.read_to = self._next

    def _free(self, record: Record) -> None:
        self.progress.done(self._claims[record.offset])

    def request(self, at: float = 0, content: bytes | None = None, answer: bytes | None = OK) -> None:
        """A whole exchange at the source."""
        time = Nanos(BEGIN + int(at * MS))
        self.recording.read(time, content or get("/"))
        self.recording.end_of_request(time)
        if answer is not None:
            self.recording.write(Nanos(time + MS), answer)

    def status(self, unsafe: int = 0) -> Status:
        return status_of(
            self.engine,
            self.accumulator,
            self.progress,
            frontiers={PLACE: 40},
            ends={PLACE: 50},
            read_to={PLACE: self.read_to},
            unsafe=unsafe,
        )

    def oldest(self, unsafe: int = 0) -> Unfinished:
        (partition,) = self.status(unsafe).partitions
        assert partition.oldest is not None
        return partition.oldest

    async def until(self, waits_for: str, unsafe: int = 0) -> Unfinished:
        """Wait until it says so."""
        async with asyncio.timeout(TIMEOUT):
            while self.oldest(unsafe).waits_for != waits_for:
                await asyncio.sleep(0.01)
        return self.oldest(unsafe)


async def never_answer(peer: Peer, request: bytes) -> None:
    """As a target that hangs."""


def on_stand(answering: Callable[[Peer, bytes], Awaitable[None]], act: Callable[[Stand], Awaitable[None]]) -> None:
    async def main() -> None:
        async with serving(answering) as server:
            stand = Stand(f"http://127.0.0.1:{server.port}")
            try:
                await act(stand)
            finally:
                stand.engine.close()

    asyncio.run(main())


async def answer(peer: Peer, request: bytes) -> None:
    peer.write(OK)


def test_the_whole_of_it_is_told() -> None:
    async def act(stand: Stand) -> None:
        stand.request()
        stand.feed()
        found = stand.status()
        assert (found.requests, found.sent, found.waiting, found.clock) == (1, 0, 1, "runs")
        assert found.source_time is not None
        assert found.source_time >= datetime.fromtimestamp(BEGIN / 1e9, UTC)
        (partition,) = found.partitions
        assert (partition.topic, partition.partition) == ("traffic", 3)
        assert (partition.frontier, partition.end, partition.lag, partition.in_flight) == (40, 50, 10, 1)
        oldest = await stand.until("the target's answer")
        assert (oldest.offset, oldest.id, oldest.connection) == (40, "3-40.0", "node/one")
        assert oldest.age_s >= 0
        assert stand.status().sent == stand.status().on_their_way == 1

    on_stand(never_answer, act)


def test_a_request_ahead_of_the_clock_waits_for_its_time_and_it_is_said_how_long() -> None:
    async def act(stand: Stand) -> None:
        stand.engine.timeline.begin(Nanos(BEGIN))
        stand.request(at=60_000)
        stand.feed()
        oldest = stand.oldest()
        assert oldest.waits_for == "its time"
        assert oldest.due_in_s is not None
        assert 0 < oldest.due_in_s <= 60

    on_stand(answer, act)


def test_what_the_target_answered_waits_for_the_source_and_then_for_its_result() -> None:
    async def act(stand: Stand) -> None:
        stand.request(answer=None)
        stand.feed()
        oldest = await stand.until("the source's answer")
        assert oldest.id == "3-40.0"
        stand.recording.write(Nanos(BEGIN + 2 * MS), OK)
        stand.feed()
        # The second record holds the end of the answer, so both wait for the one result.
        oldest = await stand.until(RESULT, unsafe=1)
        assert (oldest.offset, oldest.id) == (40, None)
        assert stand.status().partitions[0].in_flight == 2
        stand.finished[0].transaction.release()
        assert stand.status().partitions[0].oldest is None

    on_stand(answer, act)


def test_a_retry_that_needs_the_source_says_so() -> None:
    async def refuse(peer: Peer, request: bytes) -> None:
        peer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

    async def act(stand: Stand) -> None:
        stand.request(answer=None)
        stand.feed()
        await stand.until("the source's answer")
        stand.recording.write(Nanos(BEGIN + 2 * MS), OK)
        stand.feed()
        await stand.until("the next attempt")

    on_stand(refuse, act)


def test_what_is_not_whole_and_what_may_yet_be_dropped_wait_for_the_capture() -> None:
    async def act(stand: Stand) -> None:
        stand.recording.read(Nanos(BEGIN), post("/", b"12345")[:-2])
        stand.feed()
        assert stand.oldest().waits_for == REST
        assert stand.oldest().id == "3-40.0"
        stand.recording.read(Nanos(BEGIN), b"45")
        stand.feed()
        assert stand.oldest().waits_for == SUCCESSOR
        stand.accumulator.settle(PLACE.number)
        await stand.until("the source's answer")

    on_stand(answer, act)


def test_a_record_that_is_not_put_together_yet_says_so() -> None:
    async def act(stand: Stand) -> None:
        stand.register()
        assert stand.oldest().waits_for == UNREAD
        assert stand.oldest().id is None

    on_stand(answer, act)


def test_what_was_given_up_waits_for_nothing() -> None:
    async def act(stand: Stand) -> None:
        stand.request()
        stand.feed()
        await stand.until("the target's answer")
        for session in stand.engine.sessions:
            session.abort()
        assert stand.oldest().waits_for == GIVEN_UP

    on_stand(never_answer, act)


def test_while_the_target_is_down_the_clock_and_the_request_say_so(unused_port: int) -> None:
    async def main() -> None:
        stand = Stand(f"http://127.0.0.1:{unused_port}")
        stand.request()
        stand.feed()
        await stand.until("leave to send: the target cannot be reached")
        assert stand.status().clock == "the target cannot be reached"
        stand.engine.close()

    asyncio.run(main())


@pytest.fixture
def unused_port() -> int:
    async def find() -> int:
        async with serving() as server:
            return server.port

    return asyncio.run(find())
