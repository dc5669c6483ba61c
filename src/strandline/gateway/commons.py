"""What a worker asks of whoever decides for all workers, and waits for: `arbiter.py`, here or in another process."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

from strandline.gateway.messages import Answered, Ask, Denied, Done, Enter, Entered, FromWorker, Leave, ToWorker
from strandline.gateway.session import Refused


class Commons:
    """Questions and their answers. An answer may come within the call that asks for it."""

    def __init__(self, send: Callable[[FromWorker], None], wait_s: float) -> None:
        self.send = send
        self._wait_s = wait_s
        self._numbers: Iterator[int] = count()
        self._entering: dict[int, Callable[[bool], None]] = {}
        self._asking: dict[int, asyncio.Future[Denied | None]] = {}

    def heard(self, message: ToWorker) -> None:
        """Pass an answer on to whoever has asked."""
        match message:
            case Entered(number=number, is_admitted=is_admitted):
                self._entering.pop(number)(is_admitted)
            case Answered(number=number, denied=denied):
                asking = self._asking.get(number)
                if asking is not None and not asking.done():
                    asking.set_result(denied)

    def enter(self, address: str, answer: Callable[[bool], None]) -> None:
        """Is there room for a connection? Who is let in has to `leave`."""
        number = next(self._numbers)
        self._entering[number] = answer
        self.send(Enter(number, address))

    def leave(self, address: str) -> None:
        """A connection is gone."""
        self.send(Leave(address))

    async def begin_replay(self, owner: str, name: str, rank: int, *, is_paid: bool) -> int:
        """Wait until a client may be sent old records; the number to `end_replay` with. Raises Refused."""
        number = next(self._numbers)
        asking = self._asking[number] = asyncio.get_running_loop().create_future()
        is_granted = False
        try:
            self.send(Ask(number, owner, name, rank, is_paid))
            async with asyncio.timeout(self._wait_s):
                denied = await asking
            if denied is not None:
                raise Refused(denied.code, denied.message, denied.retry_after)
            is_granted = True
        except TimeoutError:
            raise Refused("busy", "too many replays at once", self._wait_s) from None
        finally:
            del self._asking[number]
            if not is_granted:
                self.end_replay(number)
        return number

    def end_replay(self, number: int) -> None:
        """It has them, or wants them no more."""
        self.send(Done(number))
