"""Answers of the proxy's own to one client: at the door, through the filters, by the rule of each API.

A broker serves a connection one request after the other. Here several are at work at a time, so what must not overtake
is kept in order: requests on their way through the filters, which may wait for something; and what a group commits,
reads and deletes of offsets, which goes to several clusters over whatever connection is free.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from strandline.core.session_states import ClientEvent
from strandline.errors import MalformedFrame
from strandline.proxy.backend import HOLD_BACK, LONGEST_ANSWER_S, Backend
from strandline.proxy.door import Door, Visitor
from strandline.proxy.exchange import Exchange, Here, Realm
from strandline.proxy.filters import Answered, FilterContext, Filters
from strandline.proxy.hold import Hold
from strandline.proxy.metrics import Counts
from strandline.proxy.rules.cluster import unsupported_versions
from strandline.proxy.rules.table import RULES, SIGNING_IN
from strandline.wire.kafka_frames import (
    PRODUCE,
    Head,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from strandline.wire.replica import claimed, refuse_replica

SASL_HANDSHAKE: Final = 17
# OffsetCommit, OffsetFetch, DeleteGroups, OffsetDelete.
OFFSETS: Final = frozenset({8, 9, 42, 47})

log = logging.getLogger(__name__)

Opened = Callable[[], Awaitable[Backend]]
"""The connection to the broker of the client's, opened when it is first needed."""


@dataclass(frozen=True, slots=True)
class Ways:
    """Where a connection leads, and what stands on the way."""

    realm: Realm
    here: Here
    filters: Filters
    door: Door | None
    counts: Counts
    hold: Hold
    idle_s: float


class Answering:
    """For one client's connection. `signs` is told how far its sign-in has come."""

    def __init__(self, peer: str, ways: Ways, backend: Opened, signs: Callable[[ClientEvent], None]) -> None:
        self.realm = ways.realm
        self.filters = ways.filters
        self.visitor = None if ways.door is None else Visitor(ways.door)
        self._peer = peer
        self._here = ways.here
        self._backend = backend
        self._signs = signs
        self._at_the_filters = asyncio.Lock()
        self._at_the_offsets = asyncio.Lock()

    async def answer(self, head: Head, frame: memoryview) -> bytes | None:
        """The frame that answers a request; None for one that has no answer."""
        low, high = self.realm.spoken.get(head.api_key, (0, -1))
        if not low <= head.version <= high:
            return encode_answer(unsupported_versions(self.realm), head.correlation_id)
        request = decode_request(frame, head)
        refuse_replica(claimed(request), head.name)
        if self.visitor is not None and head.api_key in SIGNING_IN:
            return encode_answer(self._sign_in(self.visitor, head, request), head.correlation_id)
        if not self.filters.sees(head.api_key):
            answer = await self._by_rule(head, request)
        else:
            answer = await self._through_filters(head, request)
        if answer is None or isinstance(answer, bytes):
            return answer
        return encode_answer(answer, head.correlation_id)

    async def _by_rule(self, head: Head, request: Any) -> Any:
        rule = RULES[head.api_key]
        if rule.answer is None:
            raise MalformedFrame(f"{head.name} is not spoken here")
        exchange = Exchange(head, request, self._here, self.realm, _OwnBroker(self._backend, self._here, head))
        if head.api_key not in OFFSETS:
            return await rule.answer(exchange)
        async with self._at_the_offsets:
            return await rule.answer(exchange)

    async def _through_filters(self, head: Head, request: Any) -> Any:
        user = None if self.visitor is None else self.visitor.username
        context = FilterContext(self.realm.routing(), self._peer, user)
        filters = self.filters
        async with self._at_the_filters:
            result = await filters.request(head, request, context)
        # Nothing is waited for between here and the rule: who was first at the filters is first at the broker.
        if isinstance(result, Answered):
            # Who wants no acknowledgement would take one for the answer to something else.
            is_waited_for = head.api_key != PRODUCE or request.acks
            answer = self.realm.located(result.response) if is_waited_for else None
        else:
            answer = await self._by_rule(head, result.request)
        if answer is None:
            return None
        if isinstance(answer, bytes):
            answer = decode_answer(memoryview(answer), head.api_key, head.version)
        return await filters.response(head, answer, context)

    def _sign_in(self, visitor: Visitor, head: Head, request: Any) -> Any:
        if head.api_key == SASL_HANDSHAKE:
            self._signs(ClientEvent.SHAKE)
            return visitor.shake(request)
        answer = visitor.authenticate(request)
        if visitor.failure is not None:
            log.warning("%s: %s", self._peer, visitor.failure)
            self._signs(ClientEvent.DRAIN)
        elif visitor.is_let_in:
            self._signs(ClientEvent.SIGNED_IN)
        return answer


class _OwnBroker:
    """The broker of a connection, for the rules."""

    def __init__(self, backend: Opened, here: Here, head: Head) -> None:
        self._backend = backend
        self._here = here
        self._head = head

    async def ask(self, request: Any) -> Any:
        backend = await self._backend()
        limits = self._here.cluster.limits
        # What the client asks may wait at the broker for as long as what passes to it.
        within = limits.answer_s if request.__api_key__ == self._head.api_key else limits.request_s
        if request.__api_key__ in HOLD_BACK:
            within = LONGEST_ANSWER_S
        return await backend.ask(request, self._head.client_id, within=within)

    async def tell(self, request: Any) -> None:
        backend = await self._backend()
        backend.link.write(encode_request(request, backend.next_correlation(None), self._head.client_id))
