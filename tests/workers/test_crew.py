"""A crew goes on whatever one of its workers does."""

import asyncio
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.errors import StrandlineError
from strandline.workers import crew
from strandline.workers.crew import Crew
from strandline.workers.messages import Ready
from tests.support import TIMEOUT
from tests.workers import mute
from tests.workers.loud import FromWorker, Speak, Start, from_worker


class Job:
    """Knows who has begun to serve, and who has ended."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.ended: Counter[int] = Counter()

    def first(self, number: int) -> Start:
        return Start(number)

    def heard(self, number: int, message: FromWorker) -> None:
        assert isinstance(message, Ready)
        self.begun.put_nowait(number)

    def gone(self, number: int) -> None:
        self.ended[number] += 1


def test_a_worker_that_cannot_be_understood_is_replaced_and_the_others_serve_on() -> None:
    async def serves_on() -> None:
        job = Job()
        async with Crew(job, "tests.workers.loud", 2, from_worker.decode, drain_s=20) as crew:
            stop = asyncio.Event()
            serving = asyncio.create_task(crew.wait(stop))
            assert sorted([await job.begun.get() for _ in range(2)]) == [1, 2]
            crew.tell(1, Speak())
            assert await job.begun.get() == 1
            assert job.ended == {1: 1}
            assert sorted(crew.serving()) == [1, 2]
            stop.set()
            await serving
        assert job.ended == {1: 2, 2: 1}

    asyncio.run(asyncio.wait_for(serves_on(), TIMEOUT))


async def started(limit_s: float) -> list[int]:
    """Who serves in a crew of one whose start may stand still for so long."""
    async with Crew(Job(), mute.__name__, 1, from_worker.decode, drain_s=20, start_silence_s=limit_s) as crew:
        return crew.serving()


@pytest.mark.usefixtures("freezes_count_little")
def test_a_worker_that_stands_still_while_it_starts_ends_the_start_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(mute.SECONDS, "0")
    with pytest.raises(StrandlineError) as failure:
        asyncio.run(asyncio.wait_for(started(1.0), TIMEOUT))
    line = (
        r"worker 1 \(process \d+\) has ended: its start made no progress for 1 s and was ended; look at what it logged"
    )
    assert re.fullmatch(line, str(failure.value))


@pytest.mark.usefixtures("freezes_count_little")
def test_a_worker_that_is_slow_to_start_and_works_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(mute.SECONDS, "5")
    assert asyncio.run(asyncio.wait_for(started(2.0), TIMEOUT)) == [1]


class Undying:
    """A process that hangs in the kernel."""

    pid = 0
    returncode = None
    kills = 0

    def kill(self) -> None:
        self.kills += 1

    async def wait(self) -> None:
        await asyncio.sleep(TIMEOUT)


def test_a_worker_that_does_not_end_even_when_killed_is_told_of_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crew, "KILL_SILENCE_S", 0.3)
    process: Any = Undying()
    writer: Any = SimpleNamespace(close=lambda: None)
    job = Job()

    async def bury() -> list[int]:
        workers = Crew(job, mute.__name__, 1, from_worker.decode, drain_s=20)
        worker = workers._workers[1] = crew._Worker(1, process, writer)
        await asyncio.wait_for(workers._bury(worker), TIMEOUT / 2)
        return list(workers._workers)

    assert asyncio.run(bury()) == []
    assert job.ended == {1: 1}
    assert process.kills == 1
    assert caplog.messages == ["worker 1 (process 0) does not end, not even when killed"]
