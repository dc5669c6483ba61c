"""Questions that many ask at once, asked in rounds: one at a time, and all who came meanwhile share the next.

An answer that was on its way when somebody came may be older than what they know, so nobody gets one that was asked for
before they came. Nobody who goes away takes the question with them: the others wait for it too, and a broker that is
given up on in the middle of an answer has to be connected to anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class Rounds(Generic[Question, Answer]):
    """Asks `ask`, once at a time for each question."""

    def __init__(self, ask: Callable[[Question], Awaitable[Answer]]) -> None:
        self._ask = ask
        self._now: dict[Question, asyncio.Task[Answer]] = {}
        self._next: dict[Question, asyncio.Task[Answer]] = {}

    async def answer(self, question: Question) -> Answer:
        """What is answered to a question that is asked from now on."""
        before = self._now.get(question)
        # The next may still be to begin when the one before it is over already.
        if question in self._next:
            task = self._next[question]
        elif before is None:
            task = self._begin(question)
        else:
            task = self._next[question] = asyncio.create_task(self._after(before, question))
            task.add_done_callback(_told)
        return await asyncio.shield(task)

    def _begin(self, question: Question) -> asyncio.Task[Answer]:
        async def ask() -> Answer:
            try:
                return await self._ask(question)
            finally:
                del self._now[question]

        task = self._now[question] = asyncio.create_task(ask())
        task.add_done_callback(_told)
        return task

    async def _after(self, before: asyncio.Task[Answer], question: Question) -> Answer:
        await asyncio.wait([before])
        del self._next[question]
        return await asyncio.shield(self._begin(question))


def _told(task: asyncio.Task[Answer]) -> None:
    """Know how it ended, also where nobody waits for it any more."""
    if not task.cancelled():
        task.exception()
