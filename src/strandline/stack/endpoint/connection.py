"""One connection of the endpoint: requests in, replies out in order, every wait and every buffer bounded."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import responses
from typing import Final, cast

from strandline.errors import MalformedBody, MalformedHead
from strandline.wire.body import unchunked
from strandline.wire.head import Head
from strandline.wire.http1 import FramingError, RequestFramer

MAX_BODY: Final = 16 << 20
"""10 MiB of data as base64, with its keys."""
MAX_HELD: Final = 256 << 20
"""Of all requests that have not come whole."""
MAX_PIECES: Final = 4096
"""Of one body: small ones take more room than their bytes."""
MAX_AHEAD: Final = 1 << 20
"""What is read while an answer waits; beyond it the client waits too."""
MAX_CONNECTIONS: Final = 512
REQUEST_TIMEOUT_S: Final = 60.0
"""From the first byte of a request to its last."""
LINGER_S: Final = 5.0
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and after how long."""

    body: bytes = b""
    content_type: str = "text/plain"
    status: int = 200
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer, and the connection closed after so long."""

    closes_after_s: float


@dataclass(slots=True)
class Guests:
    """What all connections share: who answers them, and how much they bring."""

    respond: Callable[[Head, bytes], Reply | Silence]
    request_timeout_s: float = REQUEST_TIMEOUT_S
    held_bytes: int = 0
    connections: set["Connection"] = field(default_factory=set)
    answered: int = 0


class Connection(asyncio.Protocol):
    """Requests one after another. The next is looked at once the one before is answered."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._framer = RequestFramer()
        self._pieces: list[memoryview] = []
        self._held = 0
        self._rest = b""
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._has_reply = False
        """One that goes out later, or never."""
        self._is_unread = False
        """The client does not read what it is sent."""
        self._is_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        self._guests.connections.add(self)
        if len(self._guests.connections) > MAX_CONNECTIONS:
            self._is_over = True
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        self._stop_timer()
        self._release()
        self._guests.connections.discard(self)

    def pause_writing(self) -> None:
        self._is_unread = True

    def resume_writing(self) -> None:
        self._is_unread = False
        self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._has_reply or self._is_unread:
            self._rest += data
            if len(self._rest) > MAX_AHEAD:
                self._transport.pause_reading()
            return
        self._read(data)

    def _read(self, data: bytes) -> None:
        framer, at = self._framer, 0
        while at < len(data) and not self._is_over:
            if self._has_reply or self._is_unread:
                self._rest = data[at:]
                return
            try:
                at = framer.feed(data, at)
            except FramingError as error:
                self._refuse(400, str(error))
                return
            if at > framer.body_at:
                # Copied once only, when the body is put together.
                piece = memoryview(data)[framer.body_at : at]
                self._pieces.append(piece)
                self._held += len(piece)
                self._guests.held_bytes += len(piece)
                if len(self._pieces) > MAX_PIECES:
                    self._pieces = [memoryview(b"".join(self._pieces))]
            if framer.complete:
                self._answer()
            elif self._held > MAX_BODY:
                self._refuse(413, f"a body of more than {MAX_BODY:,} bytes")
            elif self._guests.held_bytes > MAX_HELD:
                self._refuse(503, f"requests of more than {MAX_HELD:,} bytes are under way")
            elif self._timer is None and framer.has_begun:
                self._begin()

    def _begin(self) -> None:
        """A request of which more is to come."""
        self._timer = asyncio.get_running_loop().call_later(
            self._guests.request_timeout_s, self._refuse, 408, "the request did not come whole in time"
        )
        if self._framer.in_body and b"100-continue" in self._framer.head.lower():
            self._transport.write(CONTINUE)

    def _answer(self) -> None:
        self._stop_timer()
        head = Head(self._framer.head)
        body = b"".join(self._pieces)
        self._release()
        self._framer.next()
        if len(body) > MAX_BODY:
            self._refuse(413, f"a body of more than {MAX_BODY:,} bytes")
            return
        try:
            reply = self._guests.respond(head, unchunked(head, body))
            is_last = head.first_line.rstrip().endswith(b"/1.0") or (head.get("Connection") or "").lower() == "close"
        except (MalformedHead, MalformedBody) as error:
            self._refuse(400, str(error))
            return
        match reply:
            case Silence():
                self._has_reply = True
                self._later(reply.closes_after_s, self._transport.abort)
            case Reply(after_s=after_s) if after_s > 0:
                self._has_reply = True
                self._later(after_s, lambda: self._send_late(reply, is_last=is_last))
            case _:
                self._send(reply, is_last=is_last)

    def _send_late(self, reply: Reply, *, is_last: bool) -> None:
        self._timer = None
        self._has_reply = False
        self._send(reply, is_last=is_last)
        self._go_on()

    def _send(self, reply: Reply, *, is_last: bool) -> None:
        self._write(reply, is_last=is_last)
        if is_last:
            self._is_over = True
            self._transport.close()

    def _write(self, reply: Reply, *, is_last: bool) -> None:
        self._guests.answered += 1
        head = (
            f"HTTP/1.1 {reply.status} {responses.get(reply.status, 'Unknown')}\r\n"
            f"x-amzn-RequestId: {self._guests.answered:032x}\r\n"
            f"Content-Type: {reply.content_type}\r\nContent-Length: {len(reply.body)}\r\n"
            f"{'Connection: close' if is_last else 'Connection: keep-alive'}\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1") + reply.body)

    def _go_on(self) -> None:
        """Look at what came meanwhile, once nothing waits."""
        if self._has_reply or self._is_unread or self._is_over:
            return
        rest, self._rest = self._rest, b""
        self._transport.resume_reading()
        self._read(rest)

    def _refuse(self, status: int, problem: str) -> None:
        """The last answer, to what is no request that can be read."""
        self._stop_timer()
        self._release()
        self._write(Reply(problem.encode(), status=status), is_last=True)
        self._is_over = True
        # Read on for a moment: a connection closed with unread bytes is reset, and the answer lost with it.
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._later(LINGER_S, self._transport.abort)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, do)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        self._guests.held_bytes -= self._held
        self._held = 0
        self._pieces.clear()
