"""A connection to a broker whose answers are larger than there is room for, or not what they say they are."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse

from strandline.errors import BrokerUnreachable
from strandline.kafka.connection import SPOKEN, Connection
from strandline.kafka.security import Security
from strandline.stack.certificates import Authority
from tests.support import TIMEOUT

LARGE = 64 << 20
KERNEL_BYTES = 64 << 10
TURNS = 2_000

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve, **tls: Any) -> AsyncIterator[int]:
    """A server of one function; its port. `tls` is what `asyncio.start_server` takes for it.

    Every connection is closed when the function returns. Since Python 3.12.1 a server that is closed waits for its
    connections, and asyncio keeps one open that the client has ended: only the writer closes it.
    """

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    async with await asyncio.start_server(serve_and_close, "127.0.0.1", 0, **tls) as server:
        yield server.sockets[0].getsockname()[1]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


class Broker:
    """Tells which requests it knows; from the second time on in an answer of many bytes."""

    def __init__(self) -> None:
        self.answers = 0
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while True:
            request = await read_request(reader)
            spoken = b"".join(struct.pack(">hhh", kind.__api_key__, 0, 99) for kind in SPOKEN)
            answer = request[4:8] + struct.pack(">hi", 0, len(SPOKEN)) + spoken
            answer += bytes(LARGE) if self.answers else b""
            self.answers += 1
            writer.write(len(answer).to_bytes(4, "big") + answer)

    @property
    def unsent(self) -> int:
        assert self.writer is not None
        return self.writer.transport.get_write_buffer_size()


def test_a_broker_that_closes_an_idle_connection_is_noticed_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        broker = Broker()
        async with listening(broker.serve) as port:
            connection = await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)
            assert broker.writer is not None
            broker.writer.close()
            async with asyncio.timeout(TIMEOUT):
                while connection.is_usable:
                    await asyncio.sleep(0)
            with pytest.raises(BrokerUnreachable, match="the broker closed the connection"):
                await connection.ask(ApiVersionsRequest(), ApiVersionsResponse, within=TIMEOUT)

    asyncio.run(ask())
    assert caplog.messages == []


def test_nothing_of_an_answer_is_read_before_it_is_admitted() -> None:
    async def ask() -> None:
        broker = Broker()
        told: list[int] = []

        async def admit(size: int) -> None:
            told.append(size)
            for _ in range(TURNS):
                await asyncio.sleep(0)
            # What the kernel does not hold between us has not left the broker.
            assert broker.unsent > LARGE - 32 * KERNEL_BYTES

        async with listening(broker.serve) as port:
            connection = await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)
            assert broker.writer is not None
            # Left alone, a kernel lets the two buffers of a fast connection grow to tens of megabytes.
            for transport in (connection._frames.transport, broker.writer.transport):
                for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BYTES)
            for _ in range(2):
                answer = await connection.ask(ApiVersionsRequest(), ApiVersionsResponse, within=TIMEOUT, admit=admit)
                assert len(answer.api_keys) == len(SPOKEN)
            connection.close()
        assert len(told) == 2
        assert min(told) > LARGE

    asyncio.run(ask())


async def promise_more_than_is_there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await read_request(reader)
    answer = request[4:8] + struct.pack(">hi", 0, 0x7FFF_FFFF)
    writer.write(len(answer).to_bytes(4, "big") + answer)


async def say_what_nobody_knows(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await read_request(reader)
    answer = request[4:8] + struct.pack(">hi", 9999, 0)
    writer.write(len(answer).to_bytes(4, "big") + answer)


def test_an_error_that_nobody_knows_is_a_failure_of_the_broker_and_none_of_ours() -> None:
    async def ask() -> None:
        async with listening(say_what_nobody_knows) as port:
            with pytest.raises(BrokerUnreachable, match="9999 is not a valid ErrorCode"):
                await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)

    asyncio.run(ask())


def test_an_answer_that_promises_more_than_it_holds_is_refused_before_there_is_room_made_for_it() -> None:
    async def ask() -> None:
        async with listening(promise_more_than_is_there) as port:
            with pytest.raises(BrokerUnreachable, match="2,147,483,647 items in 0 bytes"):
                await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)

    asyncio.run(ask())


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "TLS"])
def test_an_answer_right_before_the_broker_closes_the_connection_is_read(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], is_encrypted: bool, tmp_path: Path
) -> None:
    authority = Authority("test")
    certificate, key = authority.issue("broker", ["127.0.0.1"])
    for name, content in {"broker.pem": key + certificate, "ca.pem": authority.certificate}.items():
        (tmp_path / name).write_text(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "broker.pem")
    options = {"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "ca.pem")} if is_encrypted else {}
    closed = asyncio.Event()

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            spoken = b"".join(struct.pack(">hhh", kind.__api_key__, 0, 99) for kind in SPOKEN)
            answer = request[4:8] + struct.pack(">hi", 0, len(SPOKEN)) + spoken
            writer.write(len(answer).to_bytes(4, "big") + answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        closed.set()

    async def admit(_: int) -> None:
        await closed.wait()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def ask() -> None:
        # A broker does not wait until the other side has closed too.
        tls: dict[str, Any] = {"ssl": context, "ssl_shutdown_timeout": 0.01} if is_encrypted else {}
        async with listening(answer_and_close, **tls) as port:
            security = Security.parse(options)
            connection = await Connection.open("127.0.0.1", port, security, client_id="test", within=TIMEOUT)
            answer = await connection.ask(ApiVersionsRequest(), ApiVersionsResponse, within=TIMEOUT, admit=admit)
            assert len(answer.api_keys) == len(SPOKEN)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(ask())
