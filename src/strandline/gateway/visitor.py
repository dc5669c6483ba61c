"""One client of a trial: comes, stays a while, freezes or is cut off, comes back, and notes all that it hears."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from strandline.config import Secret
from strandline.core.witness import Witness
from strandline.gateway.parting import part
from strandline.gateway.written import CHANNELS, END, Writer

ALL = "verify.*"
BACK_WITHIN_S = 0.3
LONGEST_FREEZE_S = 2.0
# How long it stays once the last records are written.
STAY_S = 120.0
CREDIT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to try."""

    url: str
    kafka: Mapping[str, str]
    topic: str
    clients: int = 200
    seconds: float = 30.0
    rate: int = 500
    deletes: bool = False
    """Whether old records are deleted under the readers now and then."""
    recreates: int = 0
    """How often the topic is deleted and made anew."""
    seed: int = 0
    token: Secret | None = None
    """What the gateway's door asks for, good until the trial is over."""

    def dial(self) -> connect:
        """A connection to the gateway, to be awaited or entered."""
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token.reveal()}"}
        return connect(self.url, compression=None, max_size=None, additional_headers=shown)


@dataclass(slots=True)
class Outcome:
    """What was found."""

    written: int = 0
    seen: int = 0
    gaps: int = 0
    connects: int = 0
    faults: list[str] = field(default_factory=list)


class Visitor:
    """One client: keeps its place itself, and trusts the gateway in nothing."""

    def __init__(self, trial: Trial, number: int, outcome: Outcome, writer: Writer) -> None:
        self._trial = trial
        self._writer = writer
        self._came_to: int | None = None
        """The log of the time when it was served first."""
        self._random = random.Random(f"{trial.seed}/{number}")  # noqa: S311  (a trial, no secret)
        self.patterns = [ALL] if number % 2 else [*self._random.sample(CHANNELS, 2), END]
        self.name = f"verify-{number}"
        self._outcome = outcome
        self._token: str | None = None
        self.witnesses: dict[int, Witness] = {}
        self.past: list[tuple[int, Witness]] = []
        """Of partitions of topics that are no more."""
        self._anew: set[int] = set()
        """Partitions that were told to be made anew, while others are still to be."""
        self._old: set[int] = set()
        """Those others, while there is no token that tells the topics apart."""
        self.ends: tuple[int, dict[int, int]] | None = None
        """The last log and the last offsets in it, once they are known."""

    @property
    def is_done(self) -> bool:
        """Whether it has seen the last records."""
        if self.ends is None or not self.witnesses:
            return False
        generation, ends = self.ends
        # One that came behind the last records has nothing to see.
        return all(
            witness.next > ends[number]
            and generation == (self._came_to if witness.generation is None else witness.generation)
            for number, witness in self.witnesses.items()
        )

    async def run(self) -> None:
        """Come, stay a while, and go, until all has been seen."""
        while not self.is_done:
            try:
                async with self._trial.dial() as connection:
                    self._outcome.connects += 1
                    try:
                        await connection.send(msgspec.json.encode(self._hello()), text=True)
                        await self._listen(connection)
                    finally:
                        await part(connection)
            except (WebSocketException, OSError, TimeoutError):
                await asyncio.sleep(BACK_WITHIN_S * self._random.random())

    def _hello(self) -> dict[str, Any]:
        if not self.witnesses:
            return {"type": "subscribe", "data": {"channels": self.patterns}}
        for number in self._old:
            # Without a token its old place would be taken for one in the new topic.
            self._begin_anew(number)
        self._old.clear()
        if self._token is None:
            self._anew.clear()
        positions = {str(number): witness.next for number, witness in self.witnesses.items()}
        data: dict[str, Any] = {
            "channels": self.patterns,
            "positions": {self._trial.topic: positions},
            "credit": CREDIT,
            "client_id": self.name,
        }
        # Positions do not tell a topic from another of its name; a token does.
        if self._token is not None and (self._trial.recreates or self._random.random() < 0.5):
            data["token"] = self._token
        return {"type": "resume", "data": data}

    def _begin_anew(self, number: int) -> None:
        self.past.append((number, self.witnesses[number]))
        self.witnesses[number] = Witness(0)

    def _made_anew(self, number: int, first: int) -> None:
        self.witnesses[number].end(first)
        self._begin_anew(number)
        if number in self._anew:
            self._anew.clear()
        self._anew.add(number)
        self._token, self._old = None, set(self.witnesses) - self._anew

    async def _listen(self, connection: ClientConnection) -> None:
        loop = asyncio.get_running_loop()
        lives_until = loop.time() + self._random.expovariate(0.5) if self.ends is None else loop.time() + STAY_S
        while not self.is_done:
            try:
                async with asyncio.timeout_at(min(lives_until, loop.time() + 1.0)):
                    text = await connection.recv()
            except TimeoutError:
                if loop.time() < lives_until:
                    continue
                await self._drop(connection)
                return
            await self._hear(connection, msgspec.json.decode(text))

    async def _drop(self, connection: ClientConnection) -> None:
        """Be cut off, with or without a freeze before it; or do nothing, and leave in good order."""
        how = self._random.random()
        if how < 0.4:
            connection.transport.abort()
        elif how < 0.6:
            connection.transport.pause_reading()
            try:
                await asyncio.sleep(self._random.random() * LONGEST_FREEZE_S)
            finally:
                # Also where the trial is stopped meanwhile: one that reads nothing cannot leave in good order.
                connection.transport.abort()

    async def _hear(self, connection: ClientConnection, heard: dict[str, Any]) -> None:
        match heard:
            case {"offset": offset, "topic": self._trial.topic, "partition": number, "data": [generation, _]}:
                self._outcome.seen += 1
                self.witnesses[number].saw(offset, generation)
            case {"type": "gap", "topic": self._trial.topic, "partition": number, "from": first, "to": int(last)}:
                self._outcome.gaps += 1
                self.witnesses[number].missed(first, last)
            case {"type": "gap", "topic": self._trial.topic, "partition": number, "from": first, "to": None}:
                self._outcome.gaps += 1
                self._made_anew(number, first)
            case {"type": "subscribed", "positions": positions, "token": token} if not self.witnesses:
                places = positions[self._trial.topic]
                self.witnesses = {int(number): Witness(int(offset)) for number, offset in places.items()}
                self._token, self._came_to = token, len(self._writer.logs) - 1
            case {"type": "token" | "resume_ack", "token": token}:
                self._token = token
                self._old.clear()
            case {"type": "resume_ack", "status": "partial"}:
                await connection.send(msgspec.json.encode({"type": "ack", "data": {"credit": CREDIT}}), text=True)
            case {"type": "error", "retry_after": int() | float() as wait}:
                await asyncio.sleep(wait)
                raise TimeoutError
            case {"type": "error", "code": code, "message": message}:
                self._outcome.faults.append(f"{self.name} was refused: {code}: {message}")
                raise TimeoutError
