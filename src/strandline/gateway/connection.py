"""One WebSocket connection: the library's protocol without I/O on one side, an asyncio transport on the other.

Frames of records are made elsewhere, for all clients at once, and written past the library: a server's frames carry no
state that it would have to know of.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from strandline.gateway.auth import NotAllowedIn
from strandline.gateway.session import SLOW, Identity, Session
from strandline.wire.asked import NotUnderstood, read

if TYPE_CHECKING:
    from strandline.gateway.server import Gateway

CLOSE_WITHIN_S = 5.0
TOO_MANY = 4029
EXPIRED = 4001

log = logging.getLogger(__name__)
quiet = logging.getLogger("strandline.gateway.websockets")
quiet.setLevel(logging.ERROR)


class Connection(asyncio.Protocol):
    """From the handshake to the end."""

    __slots__ = (
        "_alive",
        "_closing",
        "_drained",
        "_is_admitted",
        "_parts",
        "_protocol",
        "_rate",
        "_server",
        "_transport",
        "address",
        "is_slow",
        "session",
    )

    def __init__(self, server: "Gateway") -> None:
        self._server = server
        self._protocol: ServerProtocol | None = None
        self._transport = cast("asyncio.Transport", None)
        self.address = ""
        self.session: Session | None = None
        self.is_slow = False
        self._drained: asyncio.Future[None] | None = None
        self._parts: list[bytes] = []
        self._closing: asyncio.TimerHandle | None = None
        self._alive = True
        self._is_admitted = False
        self._rate = 0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        limits = self._server.limits
        self._transport.set_write_buffer_limits(high=limits.queue_bytes, low=limits.queue_bytes // 4)
        self.address = str((transport.get_extra_info("peername") or ("", 0))[0])
        self._is_admitted = self._server.admit(self)
        self._protocol = ServerProtocol(origins=self._server.origins, max_size=limits.message_bytes, logger=quiet)
        self._closing = asyncio.get_running_loop().call_later(limits.handshake_s, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol is None:
            return
        self._alive = True
        protocol.receive_data(data)
        self._serve(protocol)

    def eof_received(self) -> bool:
        if self._protocol is not None:
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
        self._server.gone(self)

    # The protocol's side.

    def _serve(self, protocol: ServerProtocol) -> None:
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._greet(protocol, event)
            elif isinstance(event, Frame):
                self._frame(protocol, event)
        self._flush(protocol)

    def _flush(self, protocol: ServerProtocol) -> None:
        for data in protocol.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()
        if protocol.close_expected() and self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._transport.abort)

    def _greet(self, protocol: ServerProtocol, request: Request) -> None:
        response = protocol.accept(request)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS and not self._is_admitted:
            response = protocol.reject(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")
        elif response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            try:
                identity = self._server.door.identify(request.path, request.headers.get("Authorization"))
            except NotAllowedIn as error:
                response = protocol.reject(HTTPStatus.UNAUTHORIZED, f"{error}\n")
            else:
                self._begin(identity)
        protocol.send_response(response)

    def _begin(self, identity: Identity) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self.session = Session(self._server, self, identity)

    def _frame(self, protocol: ServerProtocol, frame: Frame) -> None:
        if frame.opcode in {Opcode.TEXT, Opcode.CONT} and self.session is not None:
            self._parts.append(bytes(frame.data))
            if frame.fin:
                text, self._parts = b"".join(self._parts), []
                self._text(protocol, self.session, text)
        elif frame.opcode is Opcode.BINARY:
            protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are JSON texts")

    def _text(self, protocol: ServerProtocol, session: Session, text: bytes) -> None:
        self._rate += 1
        if self._rate > self._server.limits.messages_per_s:
            self.close(TOO_MANY, "too many messages")
            return
        try:
            text.decode()
        except UnicodeDecodeError:
            protocol.fail(CloseCode.INVALID_DATA, "not UTF-8")
            return
        try:
            message = read(text)
        except NotUnderstood as error:
            session.tell_error(error.code, str(error))
        else:
            session.said(message)

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

    def write(self, data: bytes) -> None:
        if self._protocol is not None and self._protocol.state is OPEN:
            self._transport.write(data)

    def close(self, code: int, reason: str) -> None:
        """Close in good order, or at once where that takes too long."""
        if self._protocol is None or self._protocol.state is not OPEN:
            return
        self._server.counts.slow += code == SLOW
        self._protocol.send_close(code, reason)
        self._flush(self._protocol)

    async def drained(self) -> None:
        if self.is_slow:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
