"""A connection to a broker whose answers are larger than there is room for, or not what they say they are."""

import asyncio
import struct

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse

from strandline.errors import BrokerUnreachable
from strandline.kafka.connection import SPOKEN, Connection
from strandline.kafka.security import Security
from tests.support import TIMEOUT

LARGE = 64 << 20
TURNS = 2_000


class Broker:
    """Tells which requests it knows; from the second time on in an answer of many bytes."""

    def __init__(self) -> None:
        self.answers = 0
        self.writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while size := await reader.read(4):
            request = await reader.readexactly(int.from_bytes(size, "big"))
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
        async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
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
            assert broker.unsent > LARGE // 2

        async with await asyncio.start_server(broker.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)
            for _ in range(2):
                answer = await connection.ask(ApiVersionsRequest(), ApiVersionsResponse, within=TIMEOUT, admit=admit)
                assert len(answer.api_keys) == len(SPOKEN)
            connection.close()
        assert len(told) == 2
        assert min(told) > LARGE

    asyncio.run(ask())


async def promise_more_than_is_there(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    answer = request[4:8] + struct.pack(">hi", 0, 0x7FFF_FFFF)
    writer.write(len(answer).to_bytes(4, "big") + answer)


async def say_what_nobody_knows(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    answer = request[4:8] + struct.pack(">hi", 9999, 0)
    writer.write(len(answer).to_bytes(4, "big") + answer)


def test_an_error_that_nobody_knows_is_a_failure_of_the_broker_and_none_of_ours() -> None:
    async def ask() -> None:
        async with await asyncio.start_server(say_what_nobody_knows, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(BrokerUnreachable, match="9999 is not a valid ErrorCode"):
                await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)

    asyncio.run(ask())


def test_an_answer_that_promises_more_than_it_holds_is_refused_before_there_is_room_made_for_it() -> None:
    async def ask() -> None:
        async with await asyncio.start_server(promise_more_than_is_there, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(BrokerUnreachable, match="2,147,483,647 items in 0 bytes"):
                await Connection.open("127.0.0.1", port, Security.parse({}), client_id="test", within=TIMEOUT)

    asyncio.run(ask())
