"""A client of the gateway that keeps its place: it reconnects, resumes in one message, and drops what comes twice.

A position is stored when the application has handled a message, which is when it asks for the next one. So a client
that dies in the middle of one gets it again, and never misses one.
"""

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import jwt
import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from strandline import tls
from strandline.errors import GatewayRefused
from strandline.gateway.address import shown
from strandline.gateway.heard import Envelope, Message, Missed, message, read
from strandline.gateway.parting import part
from strandline.gateway.place import InMemory, Place, Store
from strandline.json_decode import MalformedJson

__all__ = ["GatewayClient", "Message", "Missed"]

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0
TOKEN_WITHIN_S = 15.0
CREDIT = 1000
# Answers to a resume that trying again does not help.
FINAL = {
    "not_allowed",
    "too_many_subscriptions",
    "unknown_topic",
    "unknown_partition",
    "needs_partitions",
    "bad_message",
    "no_channels",
}
TOKEN_FAULTS = ("token_",)
REFUSED_AT_THE_DOOR = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
EXPIRED = 4001
# A fresh token is shown when so much of the life of the last one is over.
REFRESH_AFTER = 0.8
LEAST_REFRESH_S = 0.5

log = logging.getLogger(__name__)


class GatewayClient:
    """Iterate over it: messages, and what was missed where something was."""

    def __init__(
        self,
        url: str,
        channels: Iterable[str],
        *,
        store: Store | None = None,
        client_id: str | None = None,
        access_token: Callable[[], Awaitable[str]] | None = None,
        quiet: timedelta = timedelta(seconds=25),
        answer: timedelta = timedelta(seconds=10),
    ) -> None:
        """`client_id` is what the gateway counts replays by; without it this object makes one of its own.

        `access_token` is asked for a token before each connection, and before the last one ends.

        The gateway is asked whether it is alive every `quiet`, and left where it does not say so within `answer`.
        """
        self._url = url
        self._name = shown(url)
        self._channels = list(channels)
        self._store = InMemory() if store is None else store
        self._client_id = client_id or secrets.token_hex(8)
        self._access_token = access_token
        self._quiet_s, self._answer_s = quiet.total_seconds(), answer.total_seconds()
        self._place = Place()
        self._connection: ClientConnection | None = None
        self._waiting: asyncio.Task[None] | None = None
        """Runs while it waits to connect again."""
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
        if self._waiting is not None:
            self._waiting.cancel()
        if self._connection is not None:
            await part(self._connection)

    async def __aiter__(self) -> AsyncIterator[Message | Missed]:
        while not self._is_closed:
            try:
                async for item in self._connected():
                    yield item
                    if isinstance(item, Message):
                        self._place.reach(item.topic, item.partition, item.offset + 1)
                    else:
                        self._place.pass_over(item.topic, item.partition, item.first, item.last, item.reason)
                    await self._store.save(self._place)
            except (ConnectionClosed, OSError, TimeoutError, InvalidHandshake, _Again) as error:
                if self._has_expired(error):
                    raise GatewayRefused(self._name, str(error)) from None
                await self._wait(error)

    async def _connected(self) -> AsyncIterator[Message | Missed]:
        """What comes on one connection."""
        url, token = self._url, None
        if self._access_token is not None:
            token = await _in_time(self._access_token)
            url += f"{'&' if '?' in url else '?'}access_token={quote(token)}"
        async with await self._dialled(url) as connection:
            if self._is_closed:
                return  # it was left while it connected
            self._connection = connection
            self.connects += 1
            refreshing = asyncio.create_task(self._refresh(connection, token))
            try:
                await connection.send(msgspec.json.encode(self._hello()), text=True)
                while True:
                    # It says how the connection ends; iterating over it would pass over an end in good order.
                    item = await self._heard(connection, await connection.recv())
                    if item is not None:
                        self._attempts = 0
                        yield item
            finally:
                refreshing.cancel()
                await part(connection)

    async def _dialled(self, url: str) -> ClientConnection:
        """A connection; raises GatewayRefused where trying again is of no use."""
        try:
            return await connect(
                url,
                max_size=None,
                compression=None,
                ping_interval=self._quiet_s,
                ping_timeout=self._answer_s,
                close_timeout=self._answer_s,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status not in REFUSED_AT_THE_DOOR:
                raise
            asks = status == HTTPStatus.UNAUTHORIZED and self._access_token is None
            remedy = " (it asks for a token: access_token)" if asks else ""
            raise GatewayRefused(self._name, f"{error}{remedy}") from None
        except ssl.SSLError as error:
            if self.connects:
                raise  # with one that has served before, that passes
            if tls.is_answered_without(error):
                raise GatewayRefused(self._name, "there is no TLS on this port: write ws:") from None
            if isinstance(error, ssl.SSLCertVerificationError):
                problem = f"its certificate is not believed: {error.verify_message}"
                raise GatewayRefused(self._name, problem) from None
            raise

    async def _heard(self, connection: ClientConnection, text: str | bytes) -> Message | Missed | None:
        """What a text has for the application; anything else it says is done."""
        try:
            told = read(text)
        except MalformedJson as error:
            raise _Again(f"what the gateway says cannot be read: {error}") from None
        if told.offset >= 0:
            if told.offset >= self._place.next(told.topic, told.partition):
                return message(told)
            self.repeats += 1
        elif told.type == "gap":
            return Missed(told.topic, told.partition, told.from_ or 0, told.to, told.reason)
        else:
            await self._answered(connection, told)
        return None

    async def _refresh(self, connection: ClientConnection, token: str | None) -> None:
        """Show another token before the last one ends, on the same connection."""
        while token is not None and self._access_token is not None and (left := _seconds_left(token)) is not None:
            await asyncio.sleep(max(left * REFRESH_AFTER, LEAST_REFRESH_S))
            try:
                token = await _in_time(self._access_token)
            except Exception as error:  # noqa: BLE001  (the user's own; the next connection shows it to them)
                log.warning("no fresh token for %s: %s", self._name, error)
                return
            with suppress(ConnectionClosed):
                await connection.send(msgspec.json.encode({"type": "auth", "data": {"token": token}}), text=True)

    def _hello(self) -> dict[str, Any]:
        place = self._place
        place.resume()
        if place.token is None and not place.positions:
            return {"type": "subscribe", "data": {"channels": self._channels}}
        data: dict[str, Any] = {"channels": self._channels, "credit": CREDIT, "client_id": self._client_id}
        if place.token is not None:
            data["token"] = place.token
        if place.positions:
            data["positions"] = place.positions
        return {"type": "resume", "data": data}

    async def _answered(self, connection: ClientConnection, told: Envelope) -> None:
        match told.type:
            case "subscribed":
                for topic, numbers in told.positions.items():
                    for number, offset in numbers.items():
                        self._place.reach(topic, number, int(offset))
                self._place.token = told.token
                self._attempts = 0
                await self._store.save(self._place)
            case "token":
                # All before it has been handled: it stands for the positions too.
                self._place.token = told.token
                await self._store.save(self._place)
            case "resume_ack" if told.status != "partial":
                self._place.token = told.token or self._place.token
                self._attempts = 0
                await self._store.save(self._place)
            case "resume_ack":
                await connection.send(msgspec.json.encode({"type": "ack", "data": {"credit": CREDIT}}), text=True)
            case "error" if told.code.startswith(TOKEN_FAULTS):
                self._place.token = None
                raise _Again(told.message)
            case "error" if told.code in FINAL:
                raise GatewayRefused(self._name, told.message)
            case "unsubscribed":
                raise GatewayRefused(self._name, f"a fresh token no longer allows {', '.join(told.channels)}")
            case "error":
                raise _Again(told.message, told.retry_after)

    async def _wait(self, error: BaseException) -> None:
        if self._is_closed:
            return
        self._attempts += 1
        if self._attempts == 1:
            log.warning("%s: %s; trying again", self._name, str(error) or type(error).__name__)
        longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._attempts)
        wait = _asked_wait_s(error) + longest * random.random()  # noqa: S311  (spreads clients)
        self._waiting = asyncio.create_task(asyncio.sleep(wait))
        try:
            await asyncio.wait([self._waiting])
        finally:
            self._waiting.cancel()

    def _has_expired(self, error: BaseException) -> bool:
        """Whether its token has, and there is no other."""
        is_closed = isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == EXPIRED
        return is_closed and self._access_token is None


class _Again(Exception):
    """A refusal that may pass."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


async def _in_time(access_token: Callable[[], Awaitable[str]]) -> str:
    async with asyncio.timeout(TOKEN_WITHIN_S):
        return await access_token()


def _asked_wait_s(error: BaseException) -> float:
    """How long the gateway wants not to hear of us."""
    if isinstance(error, _Again):
        return error.retry_after or 0.0
    given = error.response.headers.get("Retry-After", "") if isinstance(error, InvalidStatus) else ""
    return float(given) if given.isdecimal() else 0.0


def _seconds_left(token: str) -> float | None:
    """How long a token is good for; None where it does not say so. Whether it is genuine is for the gateway to say."""
    try:
        expires = jwt.decode(token, options={"verify_signature": False, "verify_exp": False})["exp"]
        return float(expires) - time.time()
    except (jwt.InvalidTokenError, KeyError, TypeError, ValueError):
        return None
