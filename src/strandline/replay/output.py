"""Where results go: the results topic, whose word frees the records; files beside it; dead letters."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from strandline.clock import Clock
from strandline.errors import KafkaError, OutputLost, PublisherFull, StrandlineError
from strandline.kafka.events import Taken
from strandline.kafka.producer import Done, Headers, Publisher
from strandline.replay.outcomes import outcome_of
from strandline.replay.results import MAX_RECORD, WIDEST, Limits, encode_result
from strandline.replay.session import Work
from strandline.replay.tuples import encode_tuple
from strandline.units import Nanos

MAX_KEY = 1_000
"""A name of a connection may be as long as a record."""
AT_A_TIME = 1_000_000
"""For how many nanoseconds results are written before other things have their turn."""

log = logging.getLogger(__name__)


class Output:
    """Writes one result for each transaction, and lets its records go once the result is safe."""

    def __init__(
        self,
        publisher: Publisher,
        fail: Callable[[StrandlineError], None],
        clock: Clock,
        *,
        topic: str,
        dead_letters: str,
        results: Path | None = None,
        tuples: Path | None = None,
        limits: Limits = WIDEST,
    ) -> None:
        self.verdicts: Counter[str] = Counter()
        self.errors = 0
        self._publisher = publisher
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._monotonic = clock.monotonic
        self._to_wall = Nanos(clock.wall() - clock.monotonic())
        self._topic = topic
        self._dead_letters = dead_letters
        self._limits = limits
        self._results = None if results is None else _Lines(results, self._lose)
        self._tuples = None if tuples is None else _Lines(tuples, self._lose)
        self._has_lost = False
        # Work that is told when the loop is done with what it does now, work whose body is hashed in a thread, and
        # results for which the publisher has no room.
        self._told: deque[Work] = deque()
        self._backlog: deque[Callable[[], None]] = deque()
        self._draining: asyncio.Task[None] | None = None
        self._hashing: set[asyncio.Task[None]] = set()
        self._unsafe: Counter[int] = Counter()

    @property
    def is_behind(self) -> bool:
        """Whether results wait for room: no more should be read meanwhile."""
        return bool(self._backlog)

    @property
    def unsafe(self) -> int:
        """How many results are not safe yet."""
        return sum(self._unsafe.values())

    def unsafe_of(self, partitions: Iterable[int]) -> int:
        """The same for these partitions."""
        return sum(self._unsafe[partition] for partition in partitions)

    def write(self, work: Work) -> None:
        """All is known of a transaction: its result is written soon.

        Not at once: the next request on its connection goes out first.
        """
        self._unsafe[work.transaction.record.partition] += 1
        if work.spool.size - len(work.transaction.head) <= self._limits.body:
            self._told.append(work)
            if len(self._told) == 1:
                self._loop.call_soon(self._write_told)
        else:
            task = self._loop.create_task(self._hash_and_write(work))
            self._hashing.add(task)
            task.add_done_callback(self._hashing.discard)

    def _write_told(self) -> None:
        told, monotonic = self._told, self._monotonic
        until = monotonic() + AT_A_TIME
        while told:
            self._write(told[0], None)
            told.popleft()
            if monotonic() > until:
                break
        if told:
            self._loop.call_soon(self._write_told)

    async def _hash_and_write(self, work: Work) -> None:
        self._write(work, await asyncio.to_thread(_digest, work))

    def _write(self, work: Work, digest: str | None) -> None:
        outcome = outcome_of(work, to_wall=self._to_wall, keep=self._limits.body, digest=digest)
        self.verdicts[outcome.verdict.value] += 1
        self.errors += outcome.error is not None
        encoded = encode_result(outcome, self._limits)
        if self._results is not None:
            self._results.write(encoded)
        if self._tuples is not None:
            self._tuples.write(encode_tuple(outcome, self._limits))
        work.spool.release()
        key = work.transaction.key.connection.encode()[:MAX_KEY]
        self._publish(self._topic, encoded, key, None, partial(self._safe, work))

    def _lose(self, error: OutputLost) -> None:
        """A file takes no more: nothing counts as safe from now on."""
        self._has_lost = True
        self._fail(error)

    def _safe(self, work: Work, error: KafkaError | None) -> None:
        if self._has_lost:
            return
        if error is None:
            self._unsafe[work.transaction.record.partition] -= 1
            if not work.is_left:
                work.transaction.release()
        else:
            self._fail(error)

    def bury(self, taken: Taken, problem: str, done: Callable[[], None]) -> None:
        """A record that is of no use, with the reason; it is done once it is safe there."""
        self._unsafe[taken.partition.number] += 1
        log.warning("%s@%d is put to %s: %s", taken.partition, taken.offset, self._dead_letters, problem)
        headers: Headers = [
            ("reason", problem),
            ("topic", taken.partition.topic),
            ("partition", str(taken.partition.number)),
            ("offset", str(taken.offset)),
        ]

        def safe(error: KafkaError | None) -> None:
            if error is None:
                self._unsafe[taken.partition.number] -= 1
                done()
            else:
                self._fail(error)

        value, key = taken.value, taken.key
        if value is not None and len(value) > MAX_RECORD:
            headers += [("length", str(len(value))), ("sha256", sha256(value).hexdigest())]
            value = value[:MAX_RECORD]
        key = None if key is None else key[:MAX_KEY]
        self._publish(self._dead_letters, value, key, headers, safe)

    def _publish(self, topic: str, value: bytes | None, key: bytes | None, headers: Headers | None, done: Done) -> None:
        if not self._backlog:
            try:
                self._publisher.publish(topic, value, key, headers, done)
                return
            except PublisherFull:
                pass
            except KafkaError as error:
                self._fail(error)
                return
        self._backlog.append(partial(self._publisher.publish, topic, value, key, headers, done))
        if self._draining is None:
            self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        while self._backlog:
            try:
                self._backlog[0]()
            except PublisherFull:
                await self._publisher.room()
            except KafkaError as error:
                self._fail(error)
                break
            else:
                self._backlog.popleft()
        self._draining = None

    async def settle(self, partitions: Collection[int], within: timedelta) -> None:
        """Wait until every result about these partitions is safe, or the time is out."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while self.unsafe_of(partitions):
                    await asyncio.sleep(0.005)
        except TimeoutError:
            unsafe = self.unsafe_of(partitions)
            log.warning("%d results are not safe; what they are about will be replayed again", unsafe)

    def close(self) -> None:
        """Write no more."""
        self._told.clear()
        for task in (self._draining, *self._hashing):
            if task is not None:
                task.cancel()
        for lines in (self._results, self._tuples):
            if lines is not None:
                lines.close()
        self._publisher.close()


class _Lines:
    """A file of JSON lines, flushed when the loop is done with what it does now."""

    def __init__(self, path: Path, lost: Callable[[OutputLost], None]) -> None:
        self._path = path
        self._lost = lost
        try:
            self._file: BinaryIO = path.open("ab")
        except OSError as error:
            raise OutputLost(f"results cannot be written to {path}: {error.strerror}") from error
        self._is_flushing = False

    def write(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
        except OSError as error:
            self._lose(error)
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._file.closed:
            try:
                self._file.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._lost(OutputLost(f"a result cannot be written to {self._path}: {error.strerror}"))

    def close(self) -> None:
        # What could not be written before cannot be now either, and was told.
        with suppress(OSError):
            self._file.close()


def _digest(work: Work) -> str:
    """The SHA-256 of the captured body."""
    digest = sha256()
    head = len(work.transaction.head)
    for piece in work.spool.pieces:
        data = piece.load()
        digest.update(data[head:])
        head = max(0, head - len(data))
    return digest.hexdigest()
