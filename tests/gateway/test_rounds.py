"""Questions in rounds: one at a time for all, none with an answer older than who asks, and none ended by who leaves."""

import asyncio

import pytest

from strandline.gateway.rounds import Rounds


class Broker:
    """Answers when it is told to, with how often it was asked before."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[asyncio.Future[int]] = []

    async def ask(self, question: str) -> int:
        self.asked.append(question)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    async def is_asked(self, times: int) -> None:
        while len(self.asked) < times:
            await asyncio.sleep(0)


def test_all_who_come_while_a_question_is_under_way_share_the_next_one() -> None:
    async def test() -> None:
        broker = Broker()
        rounds = Rounds(broker.ask)
        first = asyncio.create_task(rounds.answer("a"))
        await broker.is_asked(1)
        later = [asyncio.create_task(rounds.answer("a")) for _ in range(20)]
        other = asyncio.create_task(rounds.answer("b"))
        await broker.is_asked(2)
        broker.answers[0].set_result(0)
        await broker.is_asked(3)
        broker.answers[2].set_result(2)
        assert await first == 0
        assert await asyncio.gather(*later) == [2] * 20
        assert broker.asked == ["a", "b", "a"]
        broker.answers[1].set_result(1)
        assert await other == 1

    asyncio.run(test())


def test_who_comes_just_when_a_question_has_been_answered_shares_the_next_one_too() -> None:
    async def test() -> None:
        broker = Broker()
        rounds = Rounds(broker.ask)
        tasks = [asyncio.create_task(rounds.answer("a"))]
        await broker.is_asked(1)
        tasks.append(asyncio.create_task(rounds.answer("a")))
        await asyncio.sleep(0)
        broker.answers[0].set_result(0)
        # One in each turn of the event loop until the next is asked.
        while len(broker.asked) < 2:
            tasks.append(asyncio.create_task(rounds.answer("a")))
            await asyncio.sleep(0)
        broker.answers[1].set_result(1)
        later = asyncio.create_task(rounds.answer("a"))
        await broker.is_asked(3)
        broker.answers[2].set_result(2)
        assert (await asyncio.gather(*tasks, later))[:2] == [0, 1]
        assert broker.asked == ["a"] * 3
        assert not rounds._now
        assert not rounds._next

    asyncio.run(test())


def test_who_leaves_takes_no_question_with_them_and_one_that_fails_fails_for_its_round_only() -> None:
    async def test() -> None:
        broker = Broker()
        rounds = Rounds(broker.ask)
        leaves = asyncio.create_task(rounds.answer("a"))
        await broker.is_asked(1)
        stays, leaves_too = (asyncio.create_task(rounds.answer("a")) for _ in range(2))
        await asyncio.sleep(0)
        for task in (leaves, leaves_too):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not broker.answers[0].cancelled()
        broker.answers[0].set_exception(ConnectionError("away"))
        await broker.is_asked(2)
        broker.answers[1].set_result(1)
        assert await stays == 1
        last = asyncio.create_task(rounds.answer("a"))
        await broker.is_asked(3)
        broker.answers[2].set_exception(ConnectionError("away"))
        with pytest.raises(ConnectionError):
            await last

    asyncio.run(test())
