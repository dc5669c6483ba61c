"""One send of batches: what goes when, what goes again, what is put away; done when nothing is left.

- At most one record of a key is on its way; the next goes when it is accepted or safe elsewhere (`core/keyed.py`).
- The fence is asked before every request, as the last thing, and now and then. When it raises, all that is on its way
  is broken off.
- A record that is wrong is in the dead-letter place before it counts as done.
- Whoever is asked for the next batch, in a thread, has ended when a send fails: it may be about to take the slot, which
  by then is another's.
"""

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from strandline.cdc.deadletter import DeadLetter, DeadLetterPlace
from strandline.cdc.failures import BACKOFF, Course, Problem
from strandline.cdc.limits import BURST, SendOptions, ShardRate
from strandline.cdc.outgoing import Record, made_ready, put_away
from strandline.clock import SystemClock
from strandline.core.keyed import Plan
from strandline.errors import DeadLetterFailed, StreamRefused
from strandline.units import Nanos, nanos

WATCH_EVERY = 0.25
TELL_EVERY = nanos(timedelta(seconds=10))
MOST_TOLD = 500
READER_ENDS_WITHIN = 15.0
"""Then a failure is handed on all the same: who gives batches may wait for minutes for a server that is silent."""

Fence = Callable[[], Nanos]
"""For how long we lead without another word; raises NotLeading when we do not. It is asked on the event loop, so it
must be quick."""
FOREVER = Nanos(1 << 62)
"""Where there is nobody else who might lead."""

Failures = list[tuple[Record, Problem]]
"""Records that were not accepted, and why."""

Put = Callable[[list[Record]], Awaitable[Failures | Problem]]
"""Asks the fence and sends one request; its failures, or the one of all of it."""

log = logging.getLogger(__name__)
clock = SystemClock()


@dataclass(slots=True)
class Sent:
    """What became of the records of a send."""

    records: int = 0
    """Accepted by the stream."""
    bytes: int = 0
    """Of those, data and keys."""
    requests: int = 0
    """Failed ones too."""
    retried: int = 0
    """How often a record had to go again."""
    throttled: int = 0
    """Of those, how often because we were too fast."""
    dead_lettered: int = 0
    first_letter: str | None = None
    """Of those, the first: its id and the reason."""
    hottest_key: str | None = None
    """The key with the most records, which went one after another."""
    hottest_records: int = 0
    """How many at least: a batch tells its hottest key only."""
    seconds: float = 0.0

    @property
    def hottest_per_s(self) -> float:
        """The rate of the hottest key."""
        return self.hottest_records / self.seconds if self.seconds else 0.0


class Sending:
    """Serves one send."""

    def __init__(
        self,
        put: Put,
        dead_letters: DeadLetterPlace | None,
        options: SendOptions,
        rate: ShardRate | None,
        *,
        stream: str,
        leadership: int | None,
        fence: Fence,
    ) -> None:
        self._put = put
        self._dead_letters = dead_letters
        self._options = options
        self._rate = rate
        self._stream = stream
        self._leadership = leadership
        self._fence = fence
        self._sent = Sent()
        self._plan: Plan[Record] = Plan(max_records=options.max_request_records, max_bytes=options.max_request_bytes)
        self._flying = 0
        self._attempts: Counter[str] = Counter()
        """Of keys whose record failed: there is one of each at the most."""
        self._hottest: Counter[str] = Counter()
        self._told: Nanos | None = None
        self._woken = asyncio.Event()
        self._reader = ThreadPoolExecutor(1, "strandline-batches")
        self._asked: Future[pa.RecordBatch | None] | None = None

    async def run(self, batches: Iterable[pa.RecordBatch]) -> Sent:
        began = clock.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch())
                await self._pump(iter(batches), group)
                watch.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self._end_reader()
        sent = self._sent
        sent.seconds = (clock.monotonic() - began) / 1e9
        for key, count in self._hottest.most_common(1):
            sent.hottest_key, sent.hottest_records = key, count
        return sent

    async def _watch(self) -> None:
        """Ends all when we lead no more, also while nothing is sent.

        No request outlives the leave to send. It is not the request's time-out that sees to it: the leave is renewed
        while a slow answer is waited for.
        """
        while True:
            await asyncio.sleep(min(WATCH_EVERY, self._fence() / 1e9))

    async def _pump(self, batches: Iterator[pa.RecordBatch], group: asyncio.TaskGroup) -> None:
        plan, options, is_more = self._plan, self._options, True
        while is_more or plan.records:
            while is_more and self._has_room():
                # In a thread: who gives them may be slow, and answers come meanwhile.
                self._asked = self._reader.submit(next, batches, None)
                batch = await asyncio.wrap_future(self._asked)
                if batch is None:
                    is_more = False
                else:
                    await self._offer(batch)
            while self._flying < options.in_flight and (request := plan.take()):
                self._flying += 1
                group.create_task(self._deliver(request))
            if plan.records and not (is_more and self._has_room()):
                # No time-out: what is not finished is on its way, or waits its time to go again.
                await self._woken.wait()
                self._woken.clear()

    def _end_reader(self) -> None:
        """Nobody is asked for another batch, and who was asked has ended. Nothing else is left to do meanwhile."""
        self._reader.shutdown(wait=False)
        if self._asked is not None and wait([self._asked], READER_ENDS_WITHIN).not_done:
            log.warning("who was asked for the next changes has not ended after %g s", READER_ENDS_WITHIN)

    def _has_room(self) -> bool:
        plan, options = self._plan, self._options
        return plan.unplanned < options.max_request_records and plan.bytes < options.max_held_bytes

    async def _offer(self, batch: pa.RecordBatch) -> None:
        outgoing = made_ready(batch, self._leadership, self._options.max_record_bytes)
        if outgoing.letters:
            await self._put_away(outgoing.letters)
        self._plan.offer(outgoing.records)
        if outgoing.hottest is not None:
            key, count = outgoing.hottest
            self._hottest[key] += count

    async def _deliver(self, request: list[Record]) -> None:
        """Send a request once. What failed may be taken again after its time."""
        if self._rate is not None:
            await _turn(self._rate, request)
        outcome = await self._attempt(request)
        failures = [(record, outcome) for record in request] if isinstance(outcome, Problem) else outcome
        accepted = request
        if failures:
            keys = {record.key for record, _ in failures}
            accepted = [record for record in request if record.key not in keys]
        self._sent.records += len(accepted)
        self._sent.bytes += sum([record.size for record in accepted])
        self._finish(accepted)
        wrong = [(record, problem) for record, problem in failures if problem.course is Course.PUT_AWAY]
        if wrong:
            if len(wrong) == len(request) > 1:
                advice = "it refuses every record alone: check its name, and that max_record_bytes is what it takes"
                raise StreamRefused(self._stream, str(wrong[0][1]), advice)
            await self._put_away([put_away(record, self._leadership, str(problem)) for record, problem in wrong])
            self._finish([record for record, _ in wrong])
        delays = self._delays(failures)
        if isinstance(outcome, Problem):
            # It keeps its place meanwhile: more requests would fare no better.
            await asyncio.sleep(max((delay for delay, _ in delays), default=0))
            delays = [(0, records) for _, records in delays]
        for delay, records in delays:
            asyncio.get_running_loop().call_later(delay, self._fail, records)
        self._flying -= 1
        self._woken.set()

    def _fail(self, records: list[Record]) -> None:
        self._plan.failed(records)
        self._woken.set()

    async def _attempt(self, request: list[Record]) -> Failures | Problem:
        self._sent.requests += 1
        outcome = await self._put(request)
        for problem in [outcome] if isinstance(outcome, Problem) else {problem for _, problem in outcome}:
            if problem.course is Course.STOP:
                raise StreamRefused(self._stream, str(problem), problem.advice)
        if isinstance(outcome, Problem) and outcome.course is Course.PUT_AWAY and len(request) > 1:
            # It is refused as a whole, without a word about which of the records is wrong.
            middle = len(request) // 2
            failures: Failures = []
            for half in (request[:middle], request[middle:]):
                found = await self._attempt(half)
                failures += [(record, found) for record in half] if isinstance(found, Problem) else found
            return failures
        return outcome

    def _finish(self, records: list[Record]) -> None:
        self._plan.finished(records)
        if self._attempts:
            for record in records:
                self._attempts.pop(record.key, None)

    def _delays(self, failures: Failures) -> list[tuple[float, list[Record]]]:
        """What goes again after which time in seconds: the more often a record has failed, the longer."""
        groups: defaultdict[tuple[Course, int], list[Record]] = defaultdict(list)
        for record, problem in failures:
            if problem.course is not Course.PUT_AWAY:
                self._attempts[record.key] += 1
                groups[problem.course, self._attempts[record.key]].append(record)
        if groups:
            self._sent.retried += sum(map(len, groups.values()))
            self._sent.throttled += sum(
                len(records) for (course, _), records in groups.items() if course is Course.SLOWER
            )
            self._tell(failures[0][1], len(failures), max(attempt for _, attempt in groups))
        return [
            (BACKOFF[course].delay(attempt, random.random()) / 1e9, records)  # noqa: S311  (no secret)
            for (course, attempt), records in groups.items()
        ]

    def _tell(self, problem: Problem, count: int, attempt: int) -> None:
        now = clock.monotonic()
        if self._told is None or now - self._told >= TELL_EVERY:
            self._told = now
            told = "stream '%s' did not accept %d records: %s; they are sent again (attempt %d failed)"
            log.warning(told, self._stream, count, problem, attempt)

    async def _put_away(self, letters: list[DeadLetter]) -> None:
        self._fence()
        if self._dead_letters is None:
            problem = f"none is set, and record {letters[0].id} cannot be sent: {letters[0].reason}"
            raise DeadLetterFailed("a place", problem)
        await self._dead_letters.write(letters)
        self._sent.dead_lettered += len(letters)
        self._sent.first_letter = self._sent.first_letter or f"{letters[0].id}: {letters[0].reason}"[:MOST_TOLD]
        log.warning("%d records are dead letters now, the first %s: %s", len(letters), letters[0].id, letters[0].reason)


async def _turn(rate: ShardRate, request: list[Record]) -> None:
    """Wait until the shards have room. After a stall all that was booked would go at once: it is booked once more."""
    booked = clock.monotonic()
    wait_s = rate.wait(request, booked)
    await asyncio.sleep(wait_s)
    if clock.monotonic() - booked > nanos(timedelta(seconds=wait_s)) + BURST:
        await asyncio.sleep(rate.wait(request, clock.monotonic()))
