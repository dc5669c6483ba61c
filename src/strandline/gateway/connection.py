"""One WebSocket connection: the library's protocol without I/O on one side, an asyncio transport on the other.

Frames of records are made elsewhere, for all clients at once, and written past the library: a server's frames carry no
state that it would have to know of.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from websockets.exceptions import InvalidMessage
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import CONNECTING, OPEN
from websockets.server import ServerProtocol

from strandline.core.address import belongs_to
from strandline.gateway import dialogue
from strandline.gateway.auth import Identity, NotAllowedIn
from strandline.gateway.session import SLOW, Session
from strandline.wire.asked import NotUnderstood, read

if TYPE_CHECKING:
    from strandline.gateway.server import Gateway

CLOSE_WITHIN_S = 5.0
SHOWN_OUT_WITHIN_S = 1.0
# When somebody that there is no room for may try again.
ROOM_AFTER_S = 5
SHOWN_OUT = (
    b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b"
)
TOO_MANY = 4029
EXPIRED = 4001
# What a client may say before it is known whether there is room for it.
MOST_EARLY_BYTES = 64 << 10
# So much is read before anything is done about it: of frames without a payload that is hundreds.
READ_AT_ONCE = 4 << 10
# What may wait beyond the queue's bound: the last that was written to a client that was not slow yet, and answers.
MOST_ANSWERS = 1 << 20

log = logging.getLogger(__name__)
quiet = logging.getLogger("strandline.gateway.websockets")
quiet.setLevel(logging.ERROR)


class Connection(asyncio.Protocol):
    """From the handshake to the end."""

    __slots__ = (
        "_alive",
        "_closing",
        "_drained",
        "_early",
        "_is_lost",
        "_is_open",
        "_parts",
        "_protocol",
        "_rate",
        "_server",
        "_transport",
        "address",
        "handshake_ends",
        "is_admitted",
        "is_made",
        "is_slow",
        "session",
    )

    def __init__(self, server: "Gateway", handshake_ends: float) -> None:
        """`handshake_ends` is when a client that is still not ready is shown out, by the event loop's clock."""
        self._server = server
        self.handshake_ends = handshake_ends
        self.is_made = False
        """Whether it has been connected; behind the handshake of TLS, where that is spoken."""
        self._protocol: ServerProtocol | None = None
        self._transport = cast("asyncio.Transport", None)
        self.address = ""
        self.session: Session | None = None
        self.is_slow = False
        self._drained: asyncio.Future[None] | None = None
        self._parts = bytearray()
        self._closing: asyncio.TimerHandle | None = None
        self._alive = True
        self._is_lost = False
        self._early = b""
        self.is_admitted: bool | None = None
        """None until it is known whether there is room for it."""
        self._is_open = False
        """From the answer to the handshake until a close goes out."""
        self._rate = 0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        limits = self._server.limits
        self._transport.set_write_buffer_limits(high=limits.queue_bytes, low=limits.queue_bytes // 4)
        self.is_made = True
        self.address = belongs_to(str((transport.get_extra_info("peername") or ("", 0))[0]))
        self._protocol = ServerProtocol(origins=self._server.origins, max_size=self._server.message_bytes, logger=quiet)
        self._closing = asyncio.get_running_loop().call_at(self.handshake_ends, self._is_late)
        self._server.came(self)

    def _is_late(self) -> None:
        self._show_out(HTTPStatus.REQUEST_TIMEOUT, b"the handshake took too long\n")

    def _show_out(self, status: HTTPStatus, reason: bytes) -> None:
        """The handshake has not come to its end: say why, and listen no more."""
        self._protocol = None
        self._transport.write(SHOWN_OUT % (status, status.phrase.encode(), len(reason), reason))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        if self._closing is not None:
            self._closing.cancel()
        self._closing = asyncio.get_running_loop().call_later(SHOWN_OUT_WITHIN_S, self._transport.abort)

    def admitted(self, is_admitted: bool) -> None:
        """Hear whether there is room for it; then what it has said meanwhile is read."""
        self.is_admitted = is_admitted
        early, self._early = self._early, b""
        if self._is_lost:
            self._server.gone(self)
        elif early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        if self.is_admitted is None:
            self._early += data
            if len(self._early) > MOST_EARLY_BYTES:
                self._transport.abort()
            return
        self._alive = True
        for at in range(0, len(data), READ_AT_ONCE):
            if self._rate > self._server.limits.messages_per_s:
                # It has been closed for that, and is not listened to any more.
                self._transport.pause_reading()
                asyncio.get_running_loop().call_later(SHOWN_OUT_WITHIN_S, self._transport.abort)
                return
            protocol.receive_data(data[at : at + READ_AT_ONCE])
            self._serve(protocol)
            if self._protocol is None:
                return  # it has been shown out

    def eof_received(self) -> bool:
        # Before the handshake is over there is nobody to say anything to.
        if self._protocol is not None and self._protocol.state is not CONNECTING:
            self._protocol.receive_eof()
            self._serve(self._protocol)
        return False

    def pause_writing(self) -> None:
        self._slow(True)

    def resume_writing(self) -> None:
        self._slow(False)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _slow(self, is_slow: bool) -> None:
        self.is_slow = is_slow
        if self.session is not None:
            self.session.writable(is_slow)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's signature)
        if self._closing is not None:
            self._closing.cancel()
        if self._drained is not None:
            self._drained.cancel()
        if self.session is not None:
            self.session.ended()
        self._is_lost = True
        self._server.gone(self)

    # The protocol's side.

    def _serve(self, protocol: ServerProtocol) -> None:
        if protocol.state is OPEN:
            # Pongs go out before answers to what came behind the pings. A close does not: what came before it is
            # answered yet.
            self._flush(protocol)
        events = protocol.events_received()
        if isinstance(protocol.handshake_exc, InvalidMessage):
            # A client that speaks TLS learns from any plain answer that there is none on this port.
            self._show_out(HTTPStatus.BAD_REQUEST, b"this is no request of HTTP\n")
            return
        if protocol.state is CONNECTING and (len(events) > 1 or (events and protocol.data_to_send())):
            # Who talks before the answer to the handshake does not speak this protocol.
            self._transport.abort()
            return
        for event in events:
            if isinstance(event, Request):
                self._greet(protocol, event)
            elif isinstance(event, Frame) and self._is_open:
                self._frame(protocol, event)
        self._flush(protocol)
        if self._transport.get_write_buffer_size() > self._server.limits.queue_bytes + MOST_ANSWERS:
            # It asks and asks, and takes no answer.
            self._transport.abort()

    def _flush(self, protocol: ServerProtocol) -> None:
        for data in protocol.data_to_send():
            if data:
                self._transport.write(data)
            elif self._transport.can_write_eof():
                # Not closed yet: with something unread the other side would be reset, and not hear why.
                self._transport.write_eof()
            else:
                self._transport.close()
        self._is_open = protocol.state is OPEN
        if protocol.close_expected() and self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._transport.abort)

    def _greet(self, protocol: ServerProtocol, request: Request) -> None:
        response = protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS and not self.is_admitted:
            response = protocol.reject(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
            response.headers["Retry-After"] = str(ROOM_AFTER_S)
        elif response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            try:
                identity = self._server.door.identify(request.path, request.headers.get_all("Authorization"))
            except NotAllowedIn as error:
                response = protocol.reject(HTTPStatus.UNAUTHORIZED, f"{error}\n")
            else:
                self._begin(identity)
        protocol.send_response(response)
        self._flush(protocol)

    def _begin(self, identity: Identity) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self.session = Session(self._server, self, identity)

    def _frame(self, protocol: ServerProtocol, frame: Frame) -> None:
        if frame.fin or not frame.data:
            # A message, a ping, or a part of nothing; the parts of a message are bounded by its size.
            self._rate += 1
            if self._rate > self._server.limits.messages_per_s:
                self.close(TOO_MANY, "too many messages")
                return
        if frame.opcode in {Opcode.TEXT, Opcode.CONT} and self.session is not None:
            self._parts += frame.data
            if frame.fin:
                text, self._parts = bytes(self._parts), bytearray()
                self._text(protocol, self.session, text)
        elif frame.opcode is Opcode.BINARY:
            protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are JSON texts")
            self._flush(protocol)

    def _text(self, protocol: ServerProtocol, session: Session, text: bytes) -> None:
        try:
            text.decode()
        except UnicodeDecodeError:
            protocol.fail(CloseCode.INVALID_DATA, "not UTF-8")
            self._flush(protocol)
            return
        try:
            message = read(text)
        except NotUnderstood as error:
            session.tell_error(error.code, str(error), answer=error.answer)
        else:
            dialogue.do(session, message)

    # What others ask of it.

    def tick(self) -> None:
        """Begin a new second of its rate."""
        self._rate = 0

    def ping(self) -> None:
        """Ask whether it is alive; end it where it has said nothing since the last time."""
        if self._protocol is None or self._protocol.state is not OPEN:
            return
        if not self._alive:
            self._transport.abort()
            return
        self._alive = False
        self._protocol.send_ping(b"")
        self._flush(self._protocol)

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    def write(self, data: bytes) -> None:
        if self._is_open:
            self._transport.write(data)

    def close(self, code: int, reason: str) -> None:
        """Close in good order, or at once where that takes too long."""
        if self._protocol is not None and self._protocol.state is CONNECTING:
            self._transport.abort()
        if self._protocol is None or self._protocol.state is not OPEN:
            return
        self._server.counts.slow += code == SLOW
        self._protocol.send_close(code, reason)
        self._flush(self._protocol)

    async def drained(self) -> None:
        if self.is_slow:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
