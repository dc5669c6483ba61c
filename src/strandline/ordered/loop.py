"""An event loop in a thread of its own, for callers that have none."""

import asyncio
import atexit
from collections.abc import Coroutine
from threading import Thread
from typing import Any, TypeVar

from strandline.errors import OptionError

T = TypeVar("T")

CANCEL_WITHIN = 1.0


class LoopThread:
    """Runs coroutines for one caller at a time; close it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        atexit.register(self._cancel)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. It is cancelled when the wait is broken off."""
        if self._loop.is_closed():
            work.close()
            raise OptionError(f"the {self._name} is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
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
            self._loop.close()
            atexit.unregister(self._cancel)

    def _cancel(self) -> None:
        """Where nobody has closed it, end what runs before Python ends: it would be complained about, task by task."""
        if self._thread.is_alive():  # which it is not in a forked process
            self.do(_cancel_tasks())

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_WITHIN)
