"""One connection to one broker: a request out, its answer in, within a time-out.

An answer says first how large it is. A caller without room for it lets it wait at the broker, unless it is small: a
broker that refuses a sign-in closes the connection right behind its answer, and TLS drops what is not read by then.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v13.request import FetchRequest
from kio.schema.list_offsets.v7.request import ListOffsetsRequest
from kio.schema.metadata.v11.request import MetadataRequest
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.protocol import RequestPayload, ResponsePayload

from strandline.errors import AuthenticationFailed, BrokerUnreachable, MalformedFrame, WrongListener
from strandline.kafka.listener import Listener, is_alert, spoken
from strandline.kafka.security import Sasl, Security
from strandline.wire.kafka_frames import SIZE, encode_request
from strandline.wire.vetted import vetted

SPOKEN: Final = (FetchRequest, ListOffsetsRequest, MetadataRequest)
# An answer holds at least one whole batch, however few bytes were asked for; no broker takes one as large as this.
MAX_FRAME = 256 << 20
FIRST_FRAME = 64 << 10
# An answer up to this size is read without waiting until there is room for it.
READ_AHEAD = 64 << 10
# Memory for an answer is used again for the next, but not that of one much larger than was asked for.
LARGEST_KEPT = 9 << 20

Answer = TypeVar("Answer", bound=ResponsePayload)
Admit = Callable[[int], Awaitable[None]]
"""Waits until there is room for an answer of so many bytes."""


@dataclass(slots=True)
class Last(Generic[Answer]):
    """What was answered last to a question that is asked again and again: the same bytes are not read anew."""

    body: bytes = b""
    answer: Answer | None = None


class _Frames(asyncio.BufferedProtocol):
    """Receives one answer at a time straight into a buffer that is used again for the next.

    The four bytes of an answer's size are read by themselves. A small answer is read on from there; of a larger one
    nothing more is read until `receive`.
    """

    transport: asyncio.Transport

    def __init__(self, address: str) -> None:
        self.address = address
        self.failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._size = memoryview(bytearray(SIZE.size))
        self._kept = bytearray(FIRST_FRAME)
        self._into = self._size
        self._filled = 0
        self._ahead: memoryview | None = None
        """The answer that is read ahead."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def send(self, frame: bytes) -> int:
        """Send a frame; the bytes of what comes back."""
        waiter = self._await(self._size)
        self.transport.write(frame)
        await waiter
        if is_alert(self._size):
            raise WrongListener(self.address, has_tls=True)
        (size,) = SIZE.unpack(self._size)
        if not SIZE.size <= size <= MAX_FRAME:
            raise ConnectionError(f"an answer of {size} bytes: this is not a Kafka broker, or not this listener")
        return int(size)

    async def receive(self, size: int) -> memoryview:
        """What came back; its memory is used again by what comes after it."""
        if self._ahead is None:
            buffer = self._kept if size <= len(self._kept) else bytearray(size)
            if size <= LARGEST_KEPT:
                self._kept = buffer
            waiter = self._await(memoryview(buffer)[:size])
            self.transport.resume_reading()
            await waiter
        elif self._filled < size:
            await self._wait()
        answer, self._ahead = self._into.toreadonly(), None
        self._into, self._filled = self._size, 0  # room for what nobody has asked for, which may be the end
        if self.failure is None:
            self.transport.resume_reading()
        return answer

    def close(self) -> None:
        self._fail(ConnectionError("the connection was closed"))

    def _await(self, buffer: memoryview) -> asyncio.Future[None]:
        waiter = self._wait()
        self._into, self._filled = buffer, 0
        return waiter

    def _wait(self) -> asyncio.Future[None]:
        if self.failure is not None:
            raise self.failure
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        return self._into[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        is_awaited = self._waiter is not None and not self._waiter.done()
        if not is_awaited and self._ahead is None:
            self._fail(ConnectionError("an answer that nobody asked for"))
        elif self._filled == len(self._into):
            (size,) = SIZE.unpack(self._size)
            if self._into is self._size and SIZE.size <= size <= READ_AHEAD:
                self._ahead = self._into = memoryview(bytearray(size))
                self._filled = 0
            else:
                self.transport.pause_reading()
            if self._waiter is not None and is_awaited:
                self._waiter.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("the broker closed the connection"))

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.transport.abort()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self.failure)


class Connection:
    """Asks one thing at a time, so that answers need no sorting. Broken by any failure; open a new one then."""

    def __init__(self, address: str, client_id: str, frames: _Frames) -> None:
        self.address = address
        self._client_id = client_id
        self._frames = frames
        self._turn = asyncio.Lock()
        self._correlation = 0

    @classmethod
    async def open(cls, host: str, port: int, security: Security, *, client_id: str, within: float) -> "Connection":
        """Connect, and sign in where the settings say so."""
        address = f"{host}:{port}"
        frames: _Frames | None = None
        try:
            async with asyncio.timeout(within):
                loop = asyncio.get_running_loop()
                _, frames = await loop.create_connection(lambda: _Frames(address), host, port, ssl=security.tls)
                connection = cls(address, client_id, frames)
                await connection._check_versions(within)
                if security.sasl is not None:
                    await sign_in(partial(connection.ask, within=within), address, security.sasl)
                return connection
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(f"the certificate of {address} is refused: {error.verify_message}") from error
        except (OSError, TimeoutError) as error:
            # Where Kafka has no TLS it breaks a handshake off, as it does when it goes away: so it is asked.
            is_broken_off = isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
            if (
                security.tls is not None
                and is_broken_off
                and await asyncio.to_thread(spoken, host, port) is Listener.PLAIN
            ):
                raise WrongListener(address, has_tls=False) from error
            raise BrokerUnreachable(address, str(error) or f"no answer within {within:g} s") from error
        except BaseException:
            if frames is not None:
                frames.close()
            raise

    @property
    def is_usable(self) -> bool:
        return self._frames.failure is None

    async def ask(
        self,
        request: RequestPayload,
        answer: type[Answer],
        *,
        within: float,
        admit: Admit | None = None,
        last: Last[Answer] | None = None,
    ) -> Answer:
        """Send a request and wait for its answer, so many seconds at most. One that is given up on ends all.

        The time until an answer that has come is admitted does not count: then it is we who are waited for.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(within) as limit:
                    self._correlation = (self._correlation + 1) & 0x7FFF_FFFF
                    size = await self._frames.send(encode_request(request, self._correlation, self._client_id))
                    if admit is not None:
                        limit.reschedule(None)
                        await admit(size)
                        limit.reschedule(asyncio.get_running_loop().time() + within)
                    return self._read(await self._frames.receive(size), answer, last)
            except (OSError, TimeoutError, SerialError, MalformedFrame, ValueError, OverflowError) as error:
                self.close()
                problem = str(error) or f"no answer to {type(request).__name__} within {within:g} s"
                raise BrokerUnreachable(self.address, problem) from error
            except BaseException:
                self.close()
                raise

    def _read(self, reply: memoryview, answer: type[Answer], last: Last[Answer] | None) -> Answer:
        header, at = entity_reader(answer.__header_schema__)(reply, 0)
        if header.correlation_id != self._correlation:
            raise ConnectionError(f"an answer to request {header.correlation_id} in place of {self._correlation}")
        body = b"" if last is None else bytes(reply[at:])
        if last is not None and last.answer is not None and last.body == body:
            return last.answer
        known, _ = vetted(answer, reply, at)
        value, _ = entity_reader(answer)(known, 0)
        if last is not None:
            last.body, last.answer = body, value
        return value

    async def _check_versions(self, within: float) -> None:
        spoken = await self.ask(ApiVersionsRequest(), ApiVersionsResponse, within=within)
        ranges = {key.api_key: (key.min_version, key.max_version) for key in spoken.api_keys}
        for request in SPOKEN:
            lowest, highest = ranges.get(request.__api_key__, (0, -1))
            if not lowest <= request.__version__ <= highest:
                name = f"{request.__name__} {request.__version__}"
                problem = f"does not speak {name} but {lowest} to {highest}; Kafka 3.1 or newer is needed"
                raise BrokerUnreachable(self.address, problem)

    def close(self) -> None:
        """Close at once."""
        self._frames.close()


async def sign_in(ask: Callable[..., Awaitable[Any]], address: str, sasl: Sasl) -> None:
    """Tell a broker who we are. `ask` takes a request and the type of its answer."""
    hello = await ask(SaslHandshakeRequest(mechanism=sasl.mechanism), SaslHandshakeResponse)
    if hello.error_code is not ErrorCode.none:
        taken = ", ".join(hello.mechanisms)
        takes = f"takes sasl.mechanism {taken}, and not {sasl.mechanism}" if taken else "takes no SASL on this port"
        raise AuthenticationFailed(f"{address} {takes}")
    client = sasl.client()
    message: bytes | None = client.first()
    while message is not None:
        answer = await ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
        if answer.error_code is not ErrorCode.none:
            reason = answer.error_message or answer.error_code.name
            raise AuthenticationFailed(f"{address} refuses user '{sasl.username}': {reason}")
        message = client.answer(answer.auth_bytes)
