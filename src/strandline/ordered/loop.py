"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import atexit
from collections.abc import Coroutine
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.errors import OptionError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

CANCEL_WITHIN = 1.0


class LoopThread:
    """Runs coroutines for one caller at a time; close it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._ending: Future[None] | None = None
        self._thread = Thread(target=_run, args=[self._loop], name=name, daemon=True)
        self._thread.start()
        atexit.register(self._cancel)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. It is cancelled when the wait is broken off."""
        if self._loop.is_closed() or self._ending is not None:
            work.close()
            raise OptionError(f"the {self._name} is closed")
        future: Future[T] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            raise

    def close(self) -> None:
        """End what still runs, then stop the loop and its threads."""
        if not self._loop.is_closed():
            # On the loop itself: the caller's thread may have a loop of its own that runs.
            self.do(_cancel_tasks())
            self.do(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            atexit.unregister(self._cancel)

    def end_with(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a last thing and close, without waiting for it: it may be the loop's own thread that calls."""
        self._ending = asyncio.run_coroutine_threadsafe(self._end_with(work), self._loop)

    async def _end_with(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            await _cancel_tasks()
            await self._loop.shutdown_default_executor()
        finally:
            atexit.unregister(self._cancel)
            self._loop.stop()

    def _cancel(self) -> None:
        """Where nobody has closed it, end what runs before Python ends: it would be complained about, task by task."""
        if self._thread.is_alive() and self._ending is None:  # it is not alive in a forked process
            self.do(_cancel_tasks())

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_WITHIN)
