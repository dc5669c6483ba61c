"""A connection to the target: one request out and its answer in, one at a time, bytes as they are."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from strandline.clock import Clock
from strandline.replay.alarms import Alarms
from strandline.units import Nanos
from strandline.wire.answers import Answer, Count
from strandline.wire.gathering import Gathering

WRITE_BUFFER = 64 << 10
"""What is given to a connection and not yet to the kernel, at most, beside one piece."""
CLOSES = re.compile(rb"\nconnection[ \t]*:[^\r\n]*\bclose\b", re.IGNORECASE)


class Later(NamedTuple):
    """A piece of a request that is due after its beginning."""

    due: Nanos
    load: Callable[[], bytes]


Done = Callable[[Answer | None, str | None], None]
"""Called once for each request: with its answer, with what went wrong, or with both when the answer is incomplete."""


class TargetConnection(asyncio.Protocol):
    """Sends a request in its pieces, each at its time, and gathers the answer."""

    def __init__(
        self,
        clock: Clock,
        alarms: Alarms,
        may_write: Callable[[], bool],
        park: Callable[[Callable[[], None]], None],
        count: Count | None = None,
    ) -> None:
        self._clock = clock
        self._alarms = alarms
        self._may_write = may_write
        self._park = park
        self._gathering = Gathering(count=count)
        self._transport: asyncio.Transport | None = None
        self._later: Sequence[Later] = ()
        self._next = 0
        self._is_full = False
        self._done: Done | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and self._done is None and not self._transport.is_closing()

    @property
    def has_unsent(self) -> bool:
        """Whether it was given bytes that the kernel has not taken yet."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def send(self, first: bytes, later: Sequence[Later], method: bytes, keep: int, done: Done) -> None:
        """Send a request: its first piece now, the others when they are due."""
        assert self._transport is not None  # noqa: S101  (`is_usable` was asked)
        self._done = done
        self._gathering.expect(method, keep)
        self._later, self._next = later, 0
        self._transport.write(first)
        if later:
            self.go_on()

    def go_on(self) -> None:
        """Write what is due, unless the target is too slow; then go on when it has taken what it has."""
        while self._done is not None and self._next < len(self._later) and not self._is_full:
            piece = self._later[self._next]
            if piece.due > self._clock.monotonic():
                self._alarms.at(piece.due, self.go_on)
                return
            if not self._may_write():
                self._park(self.go_on)
                return
            if self._transport is None:
                return
            self._next += 1
            self._transport.write(piece.load())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one without being derived from it.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.go_on()

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            # Nobody asked.
            self.close()
            return
        gathering = self._gathering
        stop = gathering.feed(data, 0, self._clock.monotonic())
        if not gathering.is_http:
            self.close()
            self._finish(gathering.end(), "the answer is not HTTP/1")
        elif gathering.complete:
            answer = gathering.end()
            is_last = stop < len(data) or self._next < len(self._later) or gathering.is_opaque
            if is_last or answer is None or answer.head.startswith(b"HTTP/1.0") or CLOSES.search(answer.head):
                self.close()
            self._finish(answer, None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is None:
            return
        answer = self._gathering.end()
        if answer is not None and answer.complete:
            self._finish(answer, None)
        else:
            how = "closed" if exc is None else f"broke ({exc})"
            what = "before it answered" if answer is None else "in the middle of its answer"
            self._finish(answer, f"the target {how} the connection {what}")

    def fail(self, problem: str) -> None:
        """Wait for the answer no longer."""
        done, answer = self._done, self._gathering.end()
        self.abort()
        self._done = done
        self._finish(answer, problem)

    def _finish(self, answer: Answer | None, problem: str | None) -> None:
        done, self._done = self._done, None
        self._later = ()
        self._gathering.drop()
        if done is not None:
            done(answer, problem)

    def close(self) -> None:
        """Say good-bye."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            # It was answered before it was read, and may never be: to wait for that could take for ever.
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self) -> None:
        """Be gone at once; nobody is told."""
        self._done = None
        self._gathering.drop()
        if self._transport is not None:
            self._transport.abort()
