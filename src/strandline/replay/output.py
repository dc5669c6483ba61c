"""Where results go: the results topic, whose word frees the records; files beside it; dead letters."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from strandline.clock import Clock
from strandline.errors import KafkaError, OutputLost, PublisherFull, StrandlineError
from strandline.kafka.claim import Claim
from strandline.kafka.events import Taken
from strandline.kafka.producer import Done, Headers, Publisher
from strandline.replay.encoding import encode_result
from strandline.replay.outcomes import outcome_of
from strandline.replay.results import MAX_RECORD, WIDEST, Limits
from strandline.replay.tuples import encode_tuple
from strandline.replay.work import Work
from strandline.units import Nanos

MAX_KEY = 1_000
"""A name of a connection may be as long as a record."""
AT_A_TIME = 1_000_000
"""For how many nanoseconds results are written before other things have their turn."""
TOLD_EACH = 3
"""How many records that go to the dead letters are told one by one; of more, their count, each time it is tenfold."""
TRY_AGAIN_AFTER = 0.005
"""How long results wait before the publisher is asked for room again."""

log = logging.getLogger(__name__)


class Output:
    """Writes one result for each transaction, and lets its records go once the result is safe."""

    def __init__(
        self,
        publisher: Publisher,
        fail: Callable[[StrandlineError], None],
        done: Callable[[Claim], None],
        clock: Clock,
        *,
        topic: str,
        dead_letters: str,
        results: Path | None = None,
        tuples: Path | None = None,
        limits: Limits = WIDEST,
    ) -> None:
        self.verdicts: dict[str, int] = {}
        self.errors = 0
        self.unsafe = 0
        """How many results are not safe yet."""
        self._publisher = publisher
        self._fail = fail
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._monotonic = clock.monotonic
        self._to_wall = Nanos(clock.wall() - clock.monotonic())
        self._topic = topic
        self._dead_letters = dead_letters
        self._limits = limits
        self._results = None if results is None else _Lines(results, self._lose)
        self._tuples = None if tuples is None else _Lines(tuples, self._lose)
        self.has_lost = False
        """Whether a file takes no more: nothing counts as safe from then on."""
        # Work that is told when the loop is done with what it does now, with the hash of a body that is cut; work
        # whose body is hashed in a thread; and what the publisher has no room for, one result at most. The others
        # wait as work then: that is counted as memory, and in part on disk.
        self._told: deque[Work] = deque()
        self._digests: dict[Work, str] = {}
        self._backlog: deque[Callable[[], None]] = deque()
        self._hashing: set[asyncio.Future[str]] = set()
        self._unsafe: dict[int, int] = {}
        self._is_closed = False
        self._buried = 0
        self._tell_at = 10

    @property
    def is_behind(self) -> bool:
        """Whether results wait for room: no more should be read meanwhile."""
        return bool(self._backlog)

    def unsafe_of(self, partitions: Iterable[int]) -> int:
        """How many results about these partitions are not safe yet."""
        return sum(self._unsafe.get(partition, 0) for partition in partitions)

    def _count(self, partition: int, change: int) -> None:
        self.unsafe += change
        self._unsafe[partition] = self._unsafe.get(partition, 0) + change

    def write(self, work: Work) -> None:
        """All is known of a transaction: its result is written soon.

        Not at once: the next request on its connection goes out first.
        """
        self._count(work.transaction.record.partition, 1)
        if work.spool.size - len(work.transaction.head) <= self._limits.body:
            self._told.append(work)
            if len(self._told) == 1:
                self._loop.call_soon(self._write_told)
        else:
            hashing = self._loop.run_in_executor(None, _digest, work)
            self._hashing.add(hashing)
            hashing.add_done_callback(partial(self._hashed, work))

    def _write_told(self) -> None:
        told, monotonic = self._told, self._monotonic
        until = monotonic() + AT_A_TIME
        while told and not self._backlog:
            self._write(told[0])
            told.popleft()
            if monotonic() > until:
                break
        if told and not self._backlog:
            self._loop.call_soon(self._write_told)

    def _hashed(self, work: Work, hashing: "asyncio.Future[str]") -> None:
        self._hashing.discard(hashing)
        if not hashing.cancelled() and not self._is_closed:
            self._digests[work] = hashing.result()
            self._told.append(work)
            if len(self._told) == 1:
                self._loop.call_soon(self._write_told)

    def _write(self, work: Work) -> None:
        digest = self._digests.pop(work, None) if self._digests else None
        outcome = outcome_of(work, to_wall=self._to_wall, keep=self._limits.body, digest=digest)
        self.verdicts[outcome.verdict] = self.verdicts.get(outcome.verdict, 0) + 1
        self.errors += outcome.error is not None
        encoded = encode_result(outcome, self._limits)
        if self._results is not None:
            self._results.write(encoded)
        if self._tuples is not None:
            self._tuples.write(encode_tuple(outcome, self._limits))
        work.spool.release()
        key = work.transaction.key.connection.encode()[:MAX_KEY]
        self._publish(self._topic, encoded, key, None, done=self._safe, about=work)

    def _lose(self, error: OutputLost) -> None:
        """A file takes no more: nothing counts as safe from now on."""
        self.has_lost = True
        self._fail(error)

    def _safe(self, work: Work, error: KafkaError | None) -> None:
        if self.has_lost:
            return
        if error is None:
            self._count(work.transaction.record.partition, -1)
            if not work.is_left:
                work.transaction.release()
        else:
            self._fail(error)

    def bury(self, taken: Taken, problem: str) -> None:
        """A record that is of no use, with the reason; it is done once it is safe there."""
        self._count(taken.partition.number, 1)
        self._buried += 1
        if self._buried <= TOLD_EACH:
            log.warning("%s@%d is put to %s: %s", taken.partition, taken.offset, self._dead_letters, problem)
        elif self._buried == self._tell_at:
            self._tell_at *= 10
            log.warning("%d records were put to %s by now, each with its reason", self._buried, self._dead_letters)
        headers: Headers = [
            ("reason", problem),
            ("topic", taken.partition.topic),
            ("partition", str(taken.partition.number)),
            ("offset", str(taken.offset)),
        ]

        value, key = taken.value, taken.key
        if value is not None and len(value) > MAX_RECORD:
            headers += [("length", str(len(value))), ("sha256", sha256(value).hexdigest())]
            value = value[:MAX_RECORD]
        key = None if key is None else key[:MAX_KEY]
        self._publish(self._dead_letters, value, key, headers, done=self._is_buried, about=taken)

    def _is_buried(self, taken: Taken, error: KafkaError | None) -> None:
        if error is None:
            self._count(taken.partition.number, -1)
            self._done(taken.claim)
        else:
            self._fail(error)

    def _publish(
        self, topic: str, value: bytes | None, key: bytes | None, headers: Headers | None, *, done: Done, about: object
    ) -> None:
        if not self._backlog:
            try:
                self._publisher.publish(topic, value, key, headers, on_done=done, about=about)
                return
            except PublisherFull:
                pass
            except KafkaError as error:
                self._fail(error)
                return
        self._backlog.append(partial(self._publisher.publish, topic, value, key, headers, on_done=done, about=about))
        if len(self._backlog) == 1:
            self._loop.call_later(TRY_AGAIN_AFTER, self._drain)

    def _drain(self) -> None:
        while self._backlog and not self._is_closed:
            try:
                self._backlog[0]()
            except PublisherFull:
                self._loop.call_later(TRY_AGAIN_AFTER, self._drain)
                return
            except KafkaError as error:
                self._fail(error)
                return
            self._backlog.popleft()
        if self._told:
            self._loop.call_soon(self._write_told)

    def close(self) -> None:
        """Write no more."""
        self._is_closed = True
        self._told.clear()
        for hashing in list(self._hashing):
            hashing.cancel()
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
