"""One connection to one broker: a request out, its answer in, within a time-out."""

import asyncio
import ssl
import struct
from io import BytesIO
from typing import Final, TypeVar, cast

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.list_offsets.v7.request import ListOffsetsRequest
from kio.schema.metadata.v9.request import MetadataRequest
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i32
from kio.static.protocol import RequestPayload, ResponsePayload

from strandline.errors import AuthenticationFailed, BrokerUnreachable
from strandline.kafka.security import Sasl, Security

SPOKEN: Final = (FetchRequest, ListOffsetsRequest, MetadataRequest)
SIZE: Final = struct.Struct(">i")
# An answer holds at least one whole batch, however few bytes were asked for; no broker takes one as large as this.
MAX_FRAME = 256 << 20
FIRST_FRAME = 64 << 10

Answer = TypeVar("Answer", bound=ResponsePayload)


class _Frames(asyncio.BufferedProtocol):
    """Receives one answer at a time straight into a buffer that is used again for the next."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self._waiter: asyncio.Future[memoryview] | None = None
        self._buffer = bytearray(FIRST_FRAME)
        self._filled = 0
        self._end = SIZE.size
        self._has_size = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    async def exchange(self, frame: bytes) -> memoryview:
        """Send a frame and wait for the next one; its memory is used again by the one after it."""
        if self.failure is not None:
            raise self.failure
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(frame)
        return await self._waiter

    def close(self) -> None:
        self._fail(ConnectionError("the connection was closed"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's signature)
        return memoryview(self._buffer)[self._filled : self._end]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < self._end:
            return
        if not self._has_size:
            (size,) = SIZE.unpack_from(self._buffer)
            if not SIZE.size <= size <= MAX_FRAME:
                self._fail(
                    ConnectionError(f"an answer of {size} bytes: this is not a Kafka broker, or not this listener")
                )
                return
            if size > len(self._buffer):
                self._buffer = bytearray(size)
            self._filled, self._end, self._has_size = 0, size, True
            return
        frame = memoryview(self._buffer)[: self._end].toreadonly()
        self._filled, self._end, self._has_size = 0, SIZE.size, False
        if self._waiter is None or self._waiter.done():
            self._fail(ConnectionError("an answer that nobody asked for"))
        else:
            self._waiter.set_result(frame)

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
                _, frames = await loop.create_connection(_Frames, host, port, ssl=security.tls)
                connection = cls(address, client_id, frames)
                await connection._check_versions(within)
                if security.sasl is not None:
                    await connection._sign_in(security.sasl, within)
                return connection
        except ssl.SSLCertVerificationError as error:
            raise AuthenticationFailed(f"the certificate of {address} is refused: {error.verify_message}") from error
        except (OSError, TimeoutError) as error:
            raise BrokerUnreachable(address, str(error) or f"no answer within {within:g} s") from error
        except BaseException:
            if frames is not None:
                frames.close()
            raise

    @property
    def is_usable(self) -> bool:
        return self._frames.failure is None

    async def ask(self, request: RequestPayload, answer: type[Answer], *, within: float) -> Answer:
        """Send a request and wait for its answer, so many seconds at most. One that is given up on ends all."""
        async with self._turn:
            try:
                async with asyncio.timeout(within):
                    return await self._exchange(request, answer)
            except (OSError, TimeoutError, SerialError) as error:
                self.close()
                problem = str(error) or f"no answer to {type(request).__name__} within {within:g} s"
                raise BrokerUnreachable(self.address, problem) from error
            except BaseException:
                self.close()
                raise

    async def _exchange(self, request: RequestPayload, answer: type[Answer]) -> Answer:
        self._correlation = (self._correlation + 1) & 0x7FFF_FFFF
        reply = await self._frames.exchange(self._frame(request))
        header, at = entity_reader(answer.__header_schema__)(reply, 0)
        if header.correlation_id != self._correlation:
            raise ConnectionError(f"an answer to request {header.correlation_id} in place of {self._correlation}")
        value, _ = entity_reader(answer)(reply, at)
        return value

    def _frame(self, request: RequestPayload) -> bytes:
        out = BytesIO()
        out.write(SIZE.pack(0))
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=i32(self._correlation),
            client_id=self._client_id,
        )
        entity_writer(type(header))(out, header)
        entity_writer(type(request))(out, request)
        frame = out.getbuffer()
        SIZE.pack_into(frame, 0, len(frame) - SIZE.size)
        return bytes(frame)

    async def _check_versions(self, within: float) -> None:
        spoken = await self.ask(ApiVersionsRequest(), ApiVersionsResponse, within=within)
        ranges = {key.api_key: (key.min_version, key.max_version) for key in spoken.api_keys}
        for request in SPOKEN:
            lowest, highest = ranges.get(request.__api_key__, (0, -1))
            if not lowest <= request.__version__ <= highest:
                name = f"{request.__name__} {request.__version__}"
                problem = f"does not speak {name} but {lowest} to {highest}; Kafka 3.0 or newer is needed"
                raise BrokerUnreachable(self.address, problem)

    async def _sign_in(self, sasl: Sasl, within: float) -> None:
        hello = await self.ask(SaslHandshakeRequest(mechanism=sasl.mechanism), SaslHandshakeResponse, within=within)
        if hello.error_code is not ErrorCode.none:
            taken = ", ".join(hello.mechanisms)
            takes = f"takes sasl.mechanism {taken}, and not {sasl.mechanism}" if taken else "takes no SASL on this port"
            raise AuthenticationFailed(f"{self.address} {takes}")
        client = sasl.client()
        message: bytes | None = client.first()
        while message is not None:
            request = SaslAuthenticateRequest(auth_bytes=message)
            answer = await self.ask(request, SaslAuthenticateResponse, within=within)
            if answer.error_code is not ErrorCode.none:
                reason = answer.error_message or answer.error_code.name
                raise AuthenticationFailed(f"{self.address} refuses user '{sasl.username}': {reason}")
            message = client.answer(answer.auth_bytes)

    def close(self) -> None:
        """Close at once."""
        self._frames.close()
