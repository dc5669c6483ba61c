"""A worker's side of a crew: it is started with the number of a socket's file descriptor, hears over that what to
serve, and serves until it is told to stop or is left alone.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
import uvloop

from strandline import logs
from strandline.errors import StrandlineError
from strandline.workers.messages import MOST_LINE_BYTES, MOST_UNSENT_BYTES, Failed, Ready, Stop, line

Told = TypeVar("Told", bound=msgspec.Struct)


class Post(Generic[Told]):
    """Where a worker hears its crew, and says how it is."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, read: Callable[[bytes], Told]
    ) -> None:
        self.stop = asyncio.Event()
        """Set when it is to end."""
        self._reader = reader
        self._writer = writer
        self._read = read
        self._working = asyncio.current_task()
        self._is_serving = False
        self._hearing: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._end)
        # It is told when to read its file again.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def told(self) -> Told:
        """The next that it is told."""
        return self._read(await self._reader.readline())

    def send(self, message: msgspec.Struct) -> None:
        """Say something."""
        if self._writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self._writer.transport.abort()
        if not self._writer.is_closing():
            self._writer.write(line(message))

    def hear(self, heard: Callable[[Told], object]) -> None:
        """From now on, hand on what it is told, and end when that is to stop or there is nobody to tell anything."""
        self._hearing = asyncio.create_task(self._hear(heard))

    def serve(self) -> None:
        """It serves now, and ends in good order from here on."""
        self._is_serving = True
        self.send(Ready())

    def leave(self) -> None:
        """Say nothing more."""
        if self._hearing is not None:
            self._hearing.cancel()
        self._writer.close()

    async def _hear(self, heard: Callable[[Told], object]) -> None:
        try:
            while text := await self._reader.readline():
                message = self._read(text)
                if isinstance(message, Stop):
                    break
                heard(message)
        except OSError:
            pass
        finally:
            self._end()

    def _end(self) -> None:
        self.stop.set()
        if not self._is_serving and self._working is not None:
            # It may be waiting for Kafka, and there is nobody to close the door to.
            self._working.cancel()


Serve = Callable[[Post[Told], Told], Awaitable[None]]


def work(serve: Serve[Told], read: Callable[[bytes], Told]) -> None:
    """Run this process as a worker: `serve` is given its post and what it was told first, which has its `number`."""
    crew = socket.socket(fileno=int(sys.argv[1]))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_work(crew, serve, read)))


async def _work(crew: socket.socket, serve: Serve[Told], read: Callable[[bytes], Told]) -> int:
    reader, writer = await asyncio.open_connection(sock=crew, limit=MOST_LINE_BYTES)
    post = Post(reader, writer, read)
    try:
        start = await post.told()
        logs.configure(fields={"worker": getattr(start, "number", 0)})
        await serve(post, start)
    except StrandlineError as error:
        post.send(Failed(str(error)))
        return 1
    except asyncio.CancelledError:
        return 1
    finally:
        post.leave()
    return 0
