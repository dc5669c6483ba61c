"""A client's connection and ours to the upstream: every byte passes unchanged, in order, and no faster than it is read.

Two protocols, one a side. What comes from the client is recorded, then passed on; the last bytes of a request that must
be held wait in a queue until Kafka has all records up to them, or for too long, and all that follows waits behind them.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, cast

from strandline.capture.holding import Deliveries, EndOfRequests, Held, Waiting
from strandline.capture.recorder import Recorder, Reliable
from strandline.units import Nanos

if TYPE_CHECKING:
    from strandline.capture.proxy import Proxy

FLUSH_BYTES = 512 << 10
"""So much of one connection is not kept any longer."""
QUEUE_BYTES = 64 << 10
"""With so much waiting, no more is read from the client, but for the read that is under way."""
LINGER_S = 1.0
UNSENT_S = 10.0
"""So long may an upstream take to read what it has been sent, once the client is gone."""
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

log = logging.getLogger(__name__)


class Pause(Enum):
    """Why nothing is read from the client."""

    CONNECTING = auto()
    UPSTREAM_SLOW = auto()
    QUEUE_FULL = auto()
    KAFKA_SLOW = auto()


class Connection(asyncio.Protocol):
    """The client's side, and what both have in common."""

    def __init__(self, proxy: "Proxy", recorder: Recorder | None) -> None:
        self._proxy = proxy
        self._counts = proxy.counts
        self._loop = asyncio.get_running_loop()
        self._recorder = recorder
        self._never_holds = proxy.settings.reliable is Reliable.NONE
        self._deliveries = Deliveries(self._settled)
        self._client: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[tuple[Nanos, bytes]] = []
        self._queue = Waiting()
        self._timer: asyncio.TimerHandle | None = None
        self._pauses: set[Pause] = set()
        self._has_ended = self._has_upstream_ended = False
        self._is_client_lost = self._is_discarding = self._closes_when_idle = False
        self._is_marked_opaque = False
        self._slow_request = -1
        self._patience_s = self._paused_at = 0.0
        self.events = 0
        """Changes whenever something comes."""

    # The client's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = cast("asyncio.Transport", transport)
        self._proxy.opened(self)
        if self._recorder is not None:
            self._recorder.connect(now())
        self._connecting = self._loop.create_task(self._connect())

    def data_received(self, data: bytes) -> None:
        self.events += 1
        self._counts.bytes_in += len(data)
        if self._upstream is None:
            if not self._is_discarding and not self._has_upstream_ended:
                self._early.append((now(), data))
                self._pause(Pause.CONNECTING)
            return
        self._take(now(), data)

    def eof_received(self) -> bool:
        self.events += 1
        self._has_ended = True
        if self._upstream is not None:
            self._end_requests()
        elif self._is_discarding:
            return False
        # Kept open, so that the answer can go back; a connection with TLS closes all the same, and would complain.
        return self._client is not None and self._client.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_client_lost = True
        if self._connecting is not None:
            self._connecting.cancel()
        if error is not None and self._recorder is not None:
            self._recorder.fail(now(), f"client: {error}")
        if not self._queue or self._upstream is None:
            self._finish()

    def pause_writing(self) -> None:
        if self._upstream is not None and not self._upstream.is_closing():
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None and not self._upstream.is_closing():
            self._upstream.resume_reading()

    # The upstream's side, called by its protocol.

    def take_response(self, data: bytes) -> None:
        """Bytes came from the upstream."""
        self.events += 1
        self._counts.bytes_out += len(data)
        at = now()
        if self._client is not None and not self._is_client_lost:
            self._client.write(data)
        recorder = self._recorder
        if recorder is None:
            return
        has_ended = recorder.write(at, data)
        if has_ended or recorder.pending > FLUSH_BYTES:
            self.flush()
        else:
            self._proxy.unflushed.add(self)
        if recorder.opaque is not None and not self._is_marked_opaque:
            self._mark_opaque(recorder.opaque)
        if has_ended and self._closes_when_idle:
            self.close_when_idle()

    def end_responses(self) -> None:
        """The upstream sends no more."""
        self.events += 1
        self._has_upstream_ended = True
        if self._recorder is not None and self._recorder.end_of_responses(now()):
            self.flush()
        if self._client is None or self._client.is_closing():
            return
        if self._has_ended or not self._client.can_write_eof():
            self.close()
        else:
            self._client.write_eof()

    def upstream_lost(self, error: Exception | None) -> None:
        """The connection to the upstream has ended."""
        self._upstream = None
        self._has_upstream_ended = True
        if self._recorder is not None:
            self._recorder.end_of_responses(now())
            if error is not None:
                self._recorder.fail(now(), f"upstream: {error}")
        self._drop_queue()
        if self._is_client_lost:
            self._finish()
        elif self._client is not None:
            self._client.close()

    def upstream_is_slow(self, *, is_slow: bool) -> None:
        """Whether the upstream takes less than the client brings."""
        self._pause(Pause.UPSTREAM_SLOW) if is_slow else self._resume(Pause.UPSTREAM_SLOW)

    # What the proxy asks for.

    @property
    def is_followed(self) -> bool:
        """Whether it can be seen when something is under way."""
        return self._recorder is not None and self._recorder.opaque is None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, as far as can be seen; of what is not followed, nothing can."""
        return self._recorder is not None and self._recorder.is_idle and not self._queue and not self._early

    @property
    def is_waiting(self) -> bool:
        """Whether something that came, or is to come, waits for Kafka."""
        return bool(self._queue) or Pause.KAFKA_SLOW in self._pauses

    def flush(self, *, is_urgent: bool = False) -> None:
        """Bring what is recorded on its way to Kafka."""
        if self._recorder is not None:
            self._publish(*self._recorder.take(), is_urgent=is_urgent)

    @property
    def is_left(self) -> bool:
        """Whether it is to be closed when it is idle, and that cannot be seen."""
        return self._closes_when_idle and not self.is_followed

    def resume_for_kafka(self) -> None:
        """There is room for records again, or there has been none for too long."""
        self._patience_s -= self._loop.time() - self._paused_at
        self._resume(Pause.KAFKA_SLOW)

    def close_when_idle(self) -> None:
        """Close once all that was asked has been answered."""
        self._closes_when_idle = True
        if self.is_idle:
            self.close()

    def close(self) -> None:
        """Close both sides, once what they were given is sent."""
        for side in (self._client, self._upstream):
            if side is not None:
                side.close()

    def abort(self, why: str) -> None:
        """End it now."""
        if self._recorder is not None:
            self._recorder.fail(now(), why)
        self._drop_queue()
        for side in (self._client, self._upstream):
            if side is not None:
                side.abort()

    # How it is done.

    async def _connect(self) -> None:
        try:
            transport = await self._proxy.connect_upstream(lambda: UpstreamSide(self))
        except OSError as error:
            self._refuse(error)
            return
        self._connecting = None
        if self._is_client_lost:
            transport.abort()
            return
        self._upstream = transport
        early, self._early = self._early, []
        for at, data in early:
            self._take(at, data)
        if self._has_ended:
            self._end_requests()
        self._resume(Pause.CONNECTING)

    def _refuse(self, error: OSError) -> None:
        """Nothing that came is recorded, since nothing of it went anywhere."""
        self._connecting = None
        self._early.clear()
        self._is_discarding = True
        if self._recorder is not None:
            self._recorder.fail(now(), f"upstream: {error}")
        if self._client is None or self._is_client_lost:
            return
        self._client.write(BAD_GATEWAY)
        if self._has_ended or not self._client.can_write_eof():
            self._client.close()
            return
        # Read on for a moment: a connection closed with unread bytes is reset, and the answer lost with it.
        self._client.write_eof()
        self._resume(Pause.CONNECTING)
        self._timer = self._loop.call_later(LINGER_S, self._client.close)

    def _take(self, at: Nanos, data: bytes) -> None:
        """Record what came, and pass it on or put it into the queue."""
        recorder = self._recorder
        if recorder is None:
            self._pass_on(data)
            return
        if self._never_holds:
            # The client is not to wait for our recording.
            self._pass_on(data)
        before = recorder.requests
        held = recorder.read(at, data)
        self._counts.requests += recorder.requests - before
        if not recorder.is_recording:
            self._counts.unrecorded += recorder.requests - before
        if held:
            self._hold(data, held)
        elif not self._never_holds:
            self._pass_on(data)
        if recorder.pending > FLUSH_BYTES:
            self.flush()
        elif recorder.pending:
            self._proxy.unflushed.add(self)
        if recorder.opaque is not None and not self._is_marked_opaque:
            self._mark_opaque(recorder.opaque)
        if recorder.is_in_held_request and recorder.is_recording and self._proxy.publisher.is_crowded:
            # It could not be recorded whole otherwise, and its end would wait in vain.
            self._wait_for_kafka(recorder.requests)

    def _wait_for_kafka(self, request: int) -> None:
        """Read no more of a request until there is room for it; all its waits together have a bound."""
        if request != self._slow_request:
            self._slow_request, self._patience_s = request, self._proxy.settings.release_after_s
        if self._patience_s > 0 and Pause.KAFKA_SLOW not in self._pauses:
            self._paused_at = self._loop.time()
            self._pause(Pause.KAFKA_SLOW)
            self._proxy.wait_for_room(self, self._patience_s)

    def _hold(self, data: bytes, places: Sequence[tuple[int, int]]) -> None:
        self.flush(is_urgent=True)
        deliveries, since = self._deliveries, self._loop.time()
        passed = 0
        for start, stop in places:
            if start > passed:
                self._pass_on(data[passed:start])
            self._queue.put(Held(data[start:stop], deliveries, deliveries.published, since))
            self._proxy.count_held(1)
            passed = stop
        if passed < len(data):
            self._pass_on(data[passed:])
        self._go_on()

    def _pass_on(self, data: bytes) -> None:
        if self._queue:
            self._queue.put(data)
            if self._queue.bytes > QUEUE_BYTES:
                self._pause(Pause.QUEUE_FULL)
        elif self._upstream is not None:
            self._upstream.write(data)

    def _go_on(self) -> None:
        """Pass on what need not wait any longer."""
        queue = self._queue
        while self._upstream is not None and (item := queue.pop()) is not None:
            match item:
                case Held():
                    self._release(item)
                case EndOfRequests():
                    self._pass_end_on()
                case _:
                    self._upstream.write(item)
        if self._timer is None and (held := queue.held) is not None:
            self._timer = self._loop.call_at(held.since + self._proxy.settings.release_after_s, self._time_out)
        if queue.bytes > QUEUE_BYTES:
            self._pause(Pause.QUEUE_FULL)
        else:
            self._resume(Pause.QUEUE_FULL)
        if not queue and self._is_client_lost:
            self._finish()

    def _release(self, held: Held) -> None:
        counts = self._counts
        self._proxy.count_held(-1)
        counts.released += 1
        counts.released_wait_s += self._loop.time() - held.since
        counts.timed_out += held.is_timed_out
        if self._recorder is not None:
            self._recorder.release(now(), timed_out=held.is_timed_out)
        if self._upstream is not None:
            self._upstream.write(held.data)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if (held := self._queue.held) is not None:
            held.is_timed_out = True
            self._go_on()

    def _settled(self, deliveries: Deliveries) -> None:
        """Kafka has said something about a record."""
        if deliveries.is_lost:
            self._lose(deliveries)
        if self._queue:
            self._go_on()

    def _lose(self, deliveries: Deliveries) -> None:
        # Once: what Kafka says of its other records says nothing of a recording that was begun since.
        if not deliveries.is_given_up:
            deliveries.is_given_up = True
            if self._recorder is not None:
                self._recorder.lose()

    def _publish(self, key: str, records: list[bytes], *, is_urgent: bool = False) -> None:
        if records and self._deliveries.is_lost:
            self._deliveries = Deliveries(self._settled)
        deliveries = self._deliveries
        publisher = self._proxy.publisher
        for record in records:
            deliveries.published += 1
            if deliveries.is_lost:
                publisher.drop(len(record) + len(key))
            elif not publisher.publish(key, record, deliveries.settle, is_urgent=is_urgent):
                deliveries.is_lost = True
        if deliveries.is_lost:
            self._lose(deliveries)

    def _end_requests(self) -> None:
        if self._recorder is not None:
            self._recorder.disconnect(now())
            self._proxy.unflushed.add(self)
        if self._queue:
            self._queue.put(EndOfRequests())
        else:
            self._pass_end_on()

    def _pass_end_on(self) -> None:
        if self._upstream is None or self._upstream.is_closing():
            return
        if self._has_upstream_ended:
            self.close()
        elif self._upstream.can_write_eof():
            self._upstream.write_eof()
        else:
            # TLS has no end of one side alone.
            self.close_when_idle()

    def _drop_queue(self) -> None:
        self._proxy.count_held(-self._queue.drop())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _finish(self) -> None:
        """The client is gone and nothing waits."""
        self._drop_queue()
        if self._recorder is not None:
            self._publish(*self._recorder.close(now()))
            self._recorder = None
        if self._upstream is not None:
            self._upstream.close()
            # It closes when all is sent, and the proxy, which ends what is idle, no longer knows of it.
            self._timer = self._loop.call_later(UNSENT_S, self._upstream.abort)
        self._proxy.closed(self)

    def _pause(self, why: Pause) -> None:
        if not self._pauses and self._client is not None and not self._client.is_closing():
            self._client.pause_reading()
        self._pauses.add(why)

    def _resume(self, why: Pause) -> None:
        if why in self._pauses:
            self._pauses.discard(why)
            if not self._pauses and self._client is not None and not self._client.is_closing():
                self._client.resume_reading()

    def _mark_opaque(self, why: str) -> None:
        self._is_marked_opaque = True
        self._counts.opaque[why.partition(":")[0]] += 1
        log.info("a connection is no longer followed: %s", why)


class UpstreamSide(asyncio.Protocol):
    """The connection to the upstream."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self.data_received = connection.take_response  # type: ignore[method-assign]  # not one call more for each read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def eof_received(self) -> bool:
        self._connection.end_responses()
        return self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.upstream_lost(error)

    def pause_writing(self) -> None:
        self._connection.upstream_is_slow(is_slow=True)

    def resume_writing(self) -> None:
        self._connection.upstream_is_slow(is_slow=False)


def now() -> Nanos:
    """The moment of an event, since 1970."""
    return Nanos(time.time_ns())
