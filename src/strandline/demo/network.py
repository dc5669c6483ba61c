"""A network that can be cut: it passes TCP connections on to a port of this machine, until it does not."""

import asyncio
from types import TracebackType
from typing import Self

from strandline.demo.serving import LOOPBACK

AT_ONCE = 64 << 10


class Network:
    """Runs while it is entered. Cut, it resets every connection, and every new one too."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._is_cut = False
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass_on, LOOPBACK, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._passing, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where to connect to instead."""
        if self._server is None:
            raise RuntimeError("the network is not there yet")
        return int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """End all connections, and let none through."""
        self._is_cut = True
        for task in self._passing:
            task.cancel()

    def restore(self) -> None:
        """Let connections through again."""
        self._is_cut = False

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if self._is_cut or task is None:
            writer.transport.abort()
            return
        self._passing.add(task)
        writers = [writer]
        try:
            there, back = await asyncio.open_connection(LOOPBACK, self._to)
            writers.append(back)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, back))
                both.create_task(_pump(there, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._passing.discard(task)
            for each in writers:
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(AT_ONCE):
        writer.write(data)
        await writer.drain()
    writer.close()
