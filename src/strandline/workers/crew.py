"""Keeps several processes of one server: starts them, starts another for one that dies, ends them in good order.

The kernel shares new connections out among the workers, each of which listens on the ports itself. What holds for all
of them together is decided by whoever has the crew. A worker whose crew is gone ends too.
"""

import asyncio
import logging
import random
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from strandline.core.retry import Backoff
from strandline.errors import CannotListen, Stalled, StrandlineError
from strandline.stalls import StallDetector, unless_stalled
from strandline.units import Nanos
from strandline.workers.messages import MOST_LINE_BYTES, MOST_UNSENT_BYTES, Failed, Ready, Stop, line

AGAIN = Backoff(first=Nanos(200_000_000), ceiling=Nanos(10_000_000_000))
# One that lived for so long has not died of how it was started.
STEADY_S = 30.0
# A worker says every moment how it is; while it starts it may have to wait for Kafka.
SILENT_S = 30.0
START_SILENCE_S = 180.0
EXIT_SILENCE_S = 10.0
KILL_SILENCE_S = 10.0

log = logging.getLogger(__name__)

Said = TypeVar("Said", bound=msgspec.Struct)
Said_contra = TypeVar("Said_contra", bound=msgspec.Struct, contravariant=True)


class Job(Protocol[Said_contra]):
    """What a crew is for."""

    def first(self, number: int) -> msgspec.Struct:
        """What a new worker is told first."""
        ...

    def heard(self, number: int, message: Said_contra) -> None:
        """A worker has said something, that it serves or has failed included."""
        ...

    def gone(self, number: int) -> None:
        """A worker is no more."""
        ...


@dataclass(slots=True)
class _Worker:
    number: int
    process: asyncio.subprocess.Process
    writer: asyncio.StreamWriter
    is_ready: bool = False
    problem: str = ""

    def send(self, message: msgspec.Struct) -> None:
        if self.writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            self.writer.transport.abort()
        if not self.writer.is_closing():
            self.writer.write(line(message))


class Crew(Generic[Said]):
    """Runs while it is entered: from when all workers serve until all have ended."""

    def __init__(
        self,
        job: Job[Said],
        module: str,
        count: int,
        read: Callable[[bytes], Said],
        *,
        drain_s: float,
        start_silence_s: float = START_SILENCE_S,
    ) -> None:
        """`module` is what a worker runs, `read` makes out what it says, `drain_s` is how long all have to end.

        A worker that makes no progress for `start_silence_s` while it starts is killed.
        """
        self._job = job
        self._module = module
        self._numbers = range(1, count + 1)
        self._read = read
        self._drain_s = drain_s
        self._start_silence_s = start_silence_s
        self._workers: dict[int, _Worker] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._all_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep(number)) for number in self._numbers]
        try:
            await self._all_ready
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        self.tell_all(Stop())
        await asyncio.wait(self._tasks, timeout=self._drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self, stop: asyncio.Event) -> None:
        """Serve until somebody says stop; raises where what keeps the workers has failed."""
        stopping = asyncio.create_task(stop.wait())
        done, _ = await asyncio.wait([stopping, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in done:
            task.result()

    def serving(self) -> list[int]:
        """The numbers of those who take connections."""
        return [worker.number for worker in list(self._workers.values()) if worker.is_ready]

    def tell(self, number: int, message: msgspec.Struct) -> None:
        """Say something to a worker, if there is one of this number now."""
        worker = self._workers.get(number)
        if worker is not None:
            worker.send(message)

    def tell_all(self, message: msgspec.Struct) -> list[int]:
        """Say something to everyone; their numbers."""
        for worker in self._workers.values():
            worker.send(message)
        return list(self._workers)

    async def _keep(self, number: int) -> None:
        """Have one worker after another under a number."""
        loop = asyncio.get_running_loop()
        attempt = 0
        while not self._stopping.is_set():
            began = loop.time()
            try:
                how = await self._live(number)
            except OSError as error:
                how = f"worker {number} could not be started: {error.strerror or error}"
            if self._stopping.is_set():
                return
            if not self._all_ready.done():
                self._all_ready.set_exception(StrandlineError(how))
                return
            attempt = 1 if loop.time() - began > STEADY_S else attempt + 1
            wait = AGAIN.delay(attempt, random.random()) / 1e9  # noqa: S311  (spreads starts, keeps no secret)
            log.warning("%s; another is started in %.1f s", how, wait, extra={"worker": number})
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()

    async def _live(self, number: int) -> str:
        """The life of a worker; how it ended."""
        ours, theirs = socket.socketpair()
        with theirs, _closed_on_failure(ours):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # A Ctrl-C at the terminal is for us alone; we end the workers in good order.
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=MOST_LINE_BYTES)
        worker = self._workers[number] = _Worker(number, process, writer)
        try:
            worker.send(self._job.first(number))
            await self._hear(worker, reader)
            detector = StallDetector(EXIT_SILENCE_S, pid=process.pid)
            await unless_stalled(process.wait(), detector, "its exit", "look at what it logged")
        except Stalled as error:
            worker.problem = str(error)
        except (ValueError, msgspec.DecodeError) as error:
            # One that cannot be understood is replaced like any other that fails: the others serve on.
            worker.problem = f"what it said cannot be read, and it was killed: {error}"
        finally:
            await self._bury(worker)
        problem = worker.problem or f"exit code {process.returncode}"
        return f"worker {number} (process {process.pid}) has ended: {problem}"

    async def _hear(self, worker: _Worker, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                text = await self._line(worker, reader)
            except ConnectionError:
                return
            if not text.endswith(b"\n"):
                return
            self._heard(worker, self._read(text))

    async def _line(self, worker: _Worker, reader: asyncio.StreamReader) -> bytes:
        if not worker.is_ready:
            detector = StallDetector(self._start_silence_s, pid=worker.process.pid)
            return await unless_stalled(reader.readline(), detector, "its start", "look at what it logged")
        try:
            async with asyncio.timeout(SILENT_S):
                return await reader.readline()
        except TimeoutError:
            raise Stalled("it", f"sent no status for {SILENT_S:g} s", "the machine may be overloaded") from None

    def _heard(self, worker: _Worker, message: Said) -> None:
        match message:
            case Ready():
                worker.is_ready = True
                log.info("worker %d serves", worker.number, extra={"worker": worker.number, "pid": worker.process.pid})
                if not self._all_ready.done() and set(self.serving()) == set(self._numbers):
                    self._all_ready.set_result(None)
            case Failed(problem=problem):
                worker.problem = problem
        self._job.heard(worker.number, message)

    async def _bury(self, worker: _Worker) -> None:
        """See that a worker is gone."""
        if worker.process.returncode is None:
            with suppress(ProcessLookupError):
                worker.process.kill()
            detector = StallDetector(KILL_SILENCE_S, pid=worker.process.pid)
            try:
                await unless_stalled(worker.process.wait(), detector, "a killed worker", "look for it in ps")
            except Stalled:
                # Only a process that hangs in the kernel gets here. We must not hang with it.
                who = "worker %d (process %d) does not end, not even when killed"
                log.error(who, worker.number, worker.process.pid, extra={"worker": worker.number})
        worker.writer.close()
        del self._workers[worker.number]
        self._job.gone(worker.number)


@contextmanager
def _closed_on_failure(held: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        held.close()
        raise


def reserve(host: str, port: int, setting: str) -> socket.socket:
    """Hold a port that the workers share, without listening on it; one that somebody else listens on is refused.

    `setting` is where the address came from.
    """
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(place)
        held = socket.socket(family, kind, proto)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(place)
    except OSError as error:
        raise CannotListen(host, port, error, setting) from error
    return held
