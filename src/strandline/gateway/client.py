"""A client of the gateway that keeps its place: it reconnects, resumes in one message, and drops what comes twice.

A position is stored when the application has handled a message, which is when it asks for the next one. So a client
that dies in the middle of one gets it again, and never misses one.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import quote

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from strandline.errors import GatewayRefused

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0
CREDIT = 1000
# Answers to a resume that trying again does not help.
FINAL = {"not_allowed", "too_many_subscriptions", "unknown_topic", "bad_message"}
TOKEN_FAULTS = ("token_",)
# After these gaps other records come at the offsets of those that are lost.
TAKEN_BACK = {"truncated", "beyond_end"}
UNAUTHORIZED = 401


@dataclass(frozen=True, slots=True)
class Message:
    """A record, as the gateway sent it."""

    seq: int
    topic: str
    partition: int
    offset: int
    timestamp: int
    channel: str
    type: str
    priority: str
    data: Any


@dataclass(frozen=True, slots=True)
class Missed:
    """Offsets that cannot be had, from the first to the last of them; None where nobody knows how many."""

    topic: str
    partition: int
    first: int
    last: int | None
    reason: str


@dataclass(slots=True)
class Place:
    """Where a client is: the last token, and the first offsets not handled since."""

    token: str | None = None
    positions: dict[str, dict[int, int]] = field(default_factory=dict)


class Store(Protocol):
    """Keeps a place from one life of the application to the next."""

    async def load(self) -> Place | None: ...

    async def save(self, place: Place) -> None: ...


class InMemory:
    """Keeps the place as long as the process lives."""

    def __init__(self) -> None:
        self._place: Place | None = None

    async def load(self) -> Place | None:
        return self._place

    async def save(self, place: Place) -> None:
        self._place = place


class _Envelope(msgspec.Struct):
    type: str
    seq: int = 0
    ts: int = 0
    priority: str = ""
    channel: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = -1
    data: Any = None
    encoding: str | None = None
    token: str | None = None
    positions: dict[str, dict[int, str]] = {}
    status: str = ""
    code: str = ""
    message: str = ""
    retry_after: float | None = None
    from_: int | None = msgspec.field(name="from", default=None)
    to: int | None = None
    reason: str = ""


_decoder = msgspec.json.Decoder(_Envelope)


class GatewayClient:
    """Iterate over it: messages, and what was missed where something was."""

    def __init__(
        self,
        url: str,
        channels: Iterable[str],
        *,
        store: Store | None = None,
        client_id: str = "",
        access_token: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._url = url
        self._channels = list(channels)
        self._store = InMemory() if store is None else store
        self._client_id = client_id
        self._access_token = access_token
        self._place = Place()
        self._connection: ClientConnection | None = None
        self._attempts = 0
        self._is_closed = False
        self.repeats = 0
        """Messages that came and were known already."""
        self.connects = 0

    async def __aenter__(self) -> Self:
        self._place = await self._store.load() or Place()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    async def __aiter__(self) -> AsyncIterator[Message | Missed]:
        while not self._is_closed:
            try:
                async for item in self._connected():
                    yield item
                    if isinstance(item, Message):
                        self._reach(item.topic, item.partition, item.offset + 1)
                    else:
                        self._pass_over(item)
                    await self._store.save(self._place)
            except (ConnectionClosed, OSError, TimeoutError, InvalidHandshake, _Again) as error:
                if _is_refusal(error):
                    raise GatewayRefused(self._url, str(error)) from None
                await self._wait(error)

    async def _connected(self) -> AsyncIterator[Message | Missed]:
        """What comes on one connection."""
        url = self._url
        if self._access_token is not None:
            url += f"{'&' if '?' in url else '?'}access_token={quote(await self._access_token())}"
        async with connect(url, max_size=None, compression=None) as connection:
            self._connection = connection
            self.connects += 1
            await connection.send(msgspec.json.encode(self._hello()), text=True)
            async for text in connection:
                self._attempts = 0
                told = _decoder.decode(text)
                if told.offset >= 0:
                    if told.offset < self._place.positions.get(told.topic, {}).get(told.partition, 0):
                        self.repeats += 1
                        continue
                    yield _message(told)
                elif told.type == "gap":
                    yield Missed(told.topic, told.partition, told.from_ or 0, told.to, told.reason)
                else:
                    await self._answered(connection, told)

    def _hello(self) -> dict[str, Any]:
        place = self._place
        if place.token is None and not place.positions:
            return {"type": "subscribe", "data": {"channels": self._channels}}
        data: dict[str, Any] = {"channels": self._channels, "credit": CREDIT, "client_id": self._client_id}
        if place.token is not None:
            data["token"] = place.token
        if place.positions:
            data["positions"] = place.positions
        return {"type": "resume", "data": data}

    async def _answered(self, connection: ClientConnection, told: _Envelope) -> None:
        match told.type:
            case "subscribed":
                for topic, numbers in told.positions.items():
                    for number, offset in numbers.items():
                        self._reach(topic, number, int(offset))
                self._place.token = told.token
                await self._store.save(self._place)
            case "token":
                # All before it has been handled: it stands for the positions too.
                self._place.token = told.token
                await self._store.save(self._place)
            case "resume_ack" if told.status == "partial":
                await connection.send(msgspec.json.encode({"type": "ack", "data": {"credit": CREDIT}}), text=True)
            case "error" if told.code.startswith(TOKEN_FAULTS):
                self._place.token = None
                raise _Again(told.message)
            case "error" if told.code in FINAL:
                raise GatewayRefused(self._url, told.message)
            case "error":
                raise _Again(told.message, told.retry_after)

    def _pass_over(self, missed: Missed) -> None:
        if missed.reason == "recreated":
            self._place.positions.get(missed.topic, {}).pop(missed.partition, None)
            self._place.token = None
        elif missed.reason in TAKEN_BACK:
            self._place.positions.setdefault(missed.topic, {})[missed.partition] = missed.first
            self._place.token = None
        elif missed.last is not None:
            self._reach(missed.topic, missed.partition, missed.last + 1)

    def _reach(self, topic: str, partition: int, offset: int) -> None:
        places = self._place.positions.setdefault(topic, {})
        places[partition] = max(offset, places.get(partition, 0))

    async def _wait(self, error: BaseException) -> None:
        self._attempts += 1
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._attempts)
        asked = error.retry_after if isinstance(error, _Again) and error.retry_after else 0.0
        await asyncio.sleep(asked + longest * random.random())  # noqa: S311  (spreads clients, keeps no secret)


class _Again(Exception):
    """A refusal that may pass."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _is_refusal(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    return response is not None and response.status_code == UNAUTHORIZED


def _message(told: _Envelope) -> Message:
    return Message(
        told.seq,
        told.topic,
        told.partition,
        told.offset,
        told.ts,
        told.channel,
        told.type,
        told.priority,
        told.data,
    )
