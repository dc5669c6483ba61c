"""A client's connection: requests are passed on or answered, and answers leave in the order of the requests.

    client ──> _take ──┬── what concerns the broker here: passed on while it comes ──> Backend ── answers ──┐
                       └── everything else: gathered, answered by its rule ──> a slot ── in order ──────────┴──> client

A slow broker stops the reading of its client, a slow client that of its broker. A request is passed on only when
nothing of this client is being answered by a rule, so that a broker sees its requests in order.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from strandline.core.session_states import BROKER, CLIENT, Broker, BrokerEvent, Client, ClientEvent, after
from strandline.errors import AuthenticationFailed, BrokerUnreachable, KafkaError, MalformedFrame, StrandlineError
from strandline.proxy.answering import Answering, Ways
from strandline.proxy.backend import Backend, Passed
from strandline.proxy.dialing import dial
from strandline.proxy.door import Door
from strandline.proxy.exchange import Realm
from strandline.proxy.filters import Filters
from strandline.proxy.hold import SMALL
from strandline.proxy.link import Link
from strandline.proxy.rules.table import RULES, SIGNING_IN, always
from strandline.wire.kafka_frames import (
    API_VERSIONS,
    CORRELATION_AT,
    FETCH,
    PRODUCE,
    SIZE,
    Head,
    answer_type,
    first_string,
    read_head,
    request_type,
    versions_known,
)
from strandline.wire.replica import first_replica, last_replica, refuse_replica
from strandline.wire.retyped import names_nodes, names_topics
from strandline.wire.skim import Seen, Skim

SKIMMED: Final = frozenset({PRODUCE, FETCH})
BEFORE_SIGNING_IN: Final = frozenset({API_VERSIONS, *SIGNING_IN})
NO_ACKS: Final = b"\0\0"
NOT_SPOKEN: Final = -1
LARGEST_PASSED: Final = 100 << 20
LARGEST_GATHERED: Final = 8 << 20
# Of who has not signed in: versions and passwords are short. They take no room from others.
LARGEST_OF_STRANGERS: Final = SMALL
# Answers of our own that are at work or wait for those before them, and how many bytes may wait so.
MOST_SLOTS: Final = 64
MOST_WAITING: Final = 4 << 20
# What a broker says that does not lead a partition, or does not know the topic.
MOVED: Final = frozenset({3, 6, 74, 75, 100, 103})
SIGN_IN_S: Final = 30.0

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Slot:
    """The place of an answer of our own among the others."""

    behind: int
    """How many answers of the broker's go before it."""
    frame: bytes | None = None
    is_ready: bool = False


class Session:
    """One client's connection."""

    def __init__(self, sock: socket.socket, peer: str, ways: Ways, closed: Callable[["Session"], None]) -> None:
        self.peer = peer
        self.here = ways.here
        self.state = Client.ROUTING if ways.door is None else Client.GREETING
        self.broker = Broker.CREATED
        self._counts = ways.counts
        self._hold = ways.hold
        self._idle_s = ways.idle_s
        self._closed = closed
        self._answering = Answering(peer, ways, self.backend, self._signs)
        self._link = Link(sock, self._take, self._ended, self._drained)
        self._backend: Backend | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots: deque[Slot] = deque()
        self._at_work = 0
        self._waiting = 0
        """Bytes of answers that are ready and cannot leave yet."""
        self._passing = 0
        self._skim: Skim | None = None
        """Of the request that passes, where it has to be followed."""
        self._gathered: bytearray | None = None
        self._item = object()
        """Of the request that is gathered, for the hold."""
        self._head: Head | None = None
        self._connected: asyncio.Task[Backend] | None = None
        self._seen = Seen(ways.realm.blocks.first(self.here.cluster.name))
        self._loop = asyncio.get_running_loop()
        self._opened_at = self._begun_at = self._moved_at = self._loop.time()
        self._moved = 0
        self._counted = 0, 0
        self._link.resume()

    @property
    def realm(self) -> Realm:
        """The clusters that it can have, as one."""
        return self._answering.realm

    @property
    def username(self) -> str | None:
        """Who has signed in; None where nobody has, or need not."""
        visitor = self._answering.visitor
        return None if visitor is None else visitor.username or None

    def move(self, realm: Realm, filters: Filters, door: Door | None) -> None:
        """Go on by other routes and filters; who signs in anew does so at this door."""
        self._answering.realm, self._answering.filters = realm, filters
        if self._answering.visitor is not None and door is not None:
            self._answering.visitor.door = door

    # From the client

    def _take(self, view: memoryview) -> int:
        sent = whole = at = 0
        end = len(view)
        try:
            while at < end:
                if self._passing:
                    stop = at + min(self._passing, end - at)
                    part = stop - at if self._skim is None else self._follow(self._skim, view[at:stop])
                    self._passing -= part
                    at += part
                    if at < stop:
                        break
                    if not self._passing:
                        whole = at
                elif self._gathered is not None and self._head is not None:
                    if not self._may_gather():
                        self._link.pause()
                        break
                    self._to_broker(view[sent:at])
                    part = min(self._head.frame - len(self._gathered), end - at)
                    self._gathered += view[at : at + part]
                    self._hold.take(self._item, self._head.size, part)
                    sent = at = at + part
                    if len(self._gathered) == self._head.frame:
                        self._answer(self._head, self._gathered)
                        self._gathered = self._head = self._link.gate = None
                elif self.state is Client.DRAINING:
                    # What had begun has come whole; nothing more is taken.
                    self._link.pause()
                    break
                else:
                    head = read_head(view[at:])
                    if head is None or not self._begin(head, view[at:]):
                        break
        finally:
            # Requests that came together go on together, also those before one that cannot be read. With a part of
            # one, and nothing else, a broker can do nothing.
            self._to_broker(view[sent:at], more=self._passing > 0 and whole <= sent)
        unseen = self._passing if self._skim is None else 0
        if unseen and self._backend is not None and self._link.straight(unseen, self._backend.link):
            self._passing = 0
        return at

    def _follow(self, skim: Skim, view: memoryview) -> int:
        """How much of a request that passes may go on. The rest comes again, with more."""
        used = skim.feed(view)
        if len(view) == self._passing:
            if used < len(view) or not skim.is_done:
                raise MalformedFrame("a request that ends too early")
            self._skim = None
        return used

    def _begin(self, head: Head, view: memoryview) -> bool:
        """Decide what becomes of a request; False when that has to wait."""
        low, high = self.realm.spoken.get(head.api_key, (0, -1))
        is_spoken = low <= head.version <= high and head.version in versions_known(head.api_key)
        if not is_spoken and head.api_key != API_VERSIONS:
            raise MalformedFrame(f"{head.name} {head.version} is not spoken here")
        if self.state in (Client.GREETING, Client.SIGNING_IN) and head.api_key not in BEFORE_SIGNING_IN:
            raise AuthenticationFailed(f"{head.name} before the client has signed in")
        rule = RULES[head.api_key]
        if rule.passes is not None and self._as_it_is(head):
            first = first_string(view, head) if rule.passes is not always else (None, head.body)
            if first is None:
                return False
            if rule.passes(self.realm, self.here, first[0]):
                return self._pass(head, view, first[1])
        largest = LARGEST_PASSED if head.api_key == PRODUCE else LARGEST_GATHERED
        if self.state in (Client.GREETING, Client.SIGNING_IN):
            largest = LARGEST_OF_STRANGERS
        if head.size > largest:
            raise MalformedFrame(f"{head.name} of {head.size:,} bytes; {largest:,} are allowed")
        if not self._has_room():
            self._link.pause()
            return False
        # Whoever asks for versions may name any; what is counted by version must not grow with them.
        self._count(head if is_spoken else head._replace(version=NOT_SPOKEN))
        self._begun_at = self._loop.time()
        self._head, self._gathered, self._item = head, bytearray(), object()
        self._link.gate = self._may_gather
        return True

    def _may_gather(self) -> bool:
        """Whether there is room for more of the request that is gathered, if one is."""
        return self._head is None or self._hold.lets(self._item, self._head.size, self._drained)

    def _has_room(self) -> bool:
        """Whether one more answer of our own can be kept for its turn, and what it takes to get it can be sent."""
        is_stuck = self._link.is_full or (self._backend is not None and self._backend.link.is_full)
        return len(self._slots) < MOST_SLOTS and self._waiting < MOST_WAITING and not is_stuck

    def _count(self, head: Head) -> None:
        self._counts.requests[self.here.cluster.name, head.api_key, head.version] += 1

    def _as_it_is(self, head: Head) -> bool:
        """Whether nothing in a request has another name in the cluster here, nor in its answer."""
        asked, answered = request_type(head.api_key, head.version), answer_type(head.api_key, head.version)
        renamed = self.realm.routes.renames(self.here.cluster.name)
        if renamed and (names_topics(asked) or names_topics(answered)):
            return False
        return (head.api_key in SKIMMED or not names_nodes(answered)) and not self._answering.filters.sees(head.api_key)

    def _pass(self, head: Head, view: memoryview, acks_at: int) -> bool:
        if head.size > LARGEST_PASSED:
            raise MalformedFrame(f"{head.name} of {head.size:,} bytes; {LARGEST_PASSED:,} are allowed")
        replica = first_replica(view, head)
        if replica is None:
            return False
        refuse_replica(replica, head.name)
        if self._backend is None or self._at_work:
            self._link.pause()
            if self._backend is None:
                self._open_backend()
            return False
        if head.api_key == PRODUCE and len(view) < acks_at + len(NO_ACKS):
            return False
        answer = None
        if head.api_key != PRODUCE or bytes(view[acks_at : acks_at + len(NO_ACKS)]) != NO_ACKS:
            answer = Passed(head.correlation_id, head.api_key, head.version)
        self._count(head)
        SIZE.pack_into(view, CORRELATION_AT, self._backend.next_correlation(answer))
        self._passing, self._skim = head.frame, last_replica(head)
        return True

    # Answers of our own

    def _answer(self, head: Head, frame: bytearray) -> None:
        slot = Slot(0 if self._backend is None else self._backend.passed)
        self._slots.append(slot)
        if self._backend is not None:
            self._backend.behind_all(self._flush)
        self._at_work += 1
        task = asyncio.create_task(self._work(head, memoryview(frame), slot))
        self._tasks.add(task)
        item = self._item
        task.add_done_callback(lambda done: self._worked(done, item))

    def _worked(self, task: "asyncio.Task[None]", item: object) -> None:
        self._tasks.discard(task)
        self._hold.release(item)

    async def _work(self, head: Head, frame: memoryview, slot: Slot) -> None:
        try:
            slot.frame = await self._answering.answer(head, frame)
        except (StrandlineError, OSError) as error:
            self.close(error)
            return
        except Exception as error:
            log.exception("%s: %s %d", self.peer, head.name, head.version)
            self.close(error)
            return
        slot.is_ready = True
        self._at_work -= 1
        self._waiting += len(slot.frame or b"")
        self._flush()

    def _signs(self, event: ClientEvent) -> None:
        if event is ClientEvent.DRAIN:
            self.drain()
        else:
            self.state = after(CLIENT, self.state, event)

    def _flush(self) -> None:
        """Send what has its turn; who was stopped for it goes on."""
        passed, answered = (0, 0) if self._backend is None else (self._backend.passed, self._backend.answered)
        while self._slots and self._slots[0].is_ready and self._slots[0].behind <= answered:
            frame = self._slots.popleft().frame
            if frame is not None:
                self._waiting -= len(frame)
                self._link.write(frame)
        if self._link.is_full and self._backend is not None:
            # There may be more answers to us on their way, each as large as this one.
            self._backend.link.pause()
        if self.state is Client.DRAINING and not self._slots and answered == passed and not self._is_within:
            self.close(None)
        else:
            self._drained()

    # To and from the broker

    def _to_broker(self, part: memoryview, *, more: bool = False) -> None:
        if self._backend is None or not part:
            return
        self._backend.link.write(part, more=more)
        if self._backend.link.is_full:
            self._link.pause()

    def _to_client(self, part: memoryview) -> None:
        if self._seen.errors:
            if self._seen.errors & MOVED:
                self.realm.directory.mark_stale(self.here.cluster.name)
            self._seen.errors.clear()
        self._link.write(part)
        if self._link.is_full and self._backend is not None:
            self._backend.link.pause()

    def _drained(self) -> None:
        """Something was sent, or finished: who was stopped for it goes on."""
        if self._backend is not None and not self._link.is_full:
            self._backend.link.resume()
        may_read = self.broker is not Broker.CONNECTING or self._at_work
        full = self._backend is not None and self._backend.link.is_full
        wants_more = self._is_within if self.state is Client.DRAINING else self._has_room() or self._is_within
        if wants_more and may_read and not full and not self._link.is_reading and self._may_gather():
            self._link.resume()

    @property
    def _is_within(self) -> bool:
        """Whether a request has come in part."""
        return bool(self._passing) or self._gathered is not None or self._link.is_passing

    def _open_backend(self) -> "asyncio.Task[Backend]":
        if self._connected is None:
            self.broker = after(BROKER, self.broker, BrokerEvent.NEEDED)
            self._connected = asyncio.create_task(dial(self.here, self._made))
            self._connected.add_done_callback(self._opened)
        return self._connected

    def _made(self, sock: socket.socket, address: str) -> Backend:
        return Backend(
            sock,
            address,
            seen=self._seen,
            client=self._link,
            onto=self._to_client,
            drained=self._drained,
            ended=self._broker_ended,
        )

    def _opened(self, task: "asyncio.Task[Backend]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if self.state is Client.CLOSED:
            if error is None:
                task.result().close()
            return
        if error is not None:
            self.broker = after(BROKER, self.broker, BrokerEvent.REFUSED)
            self.close(error if isinstance(error, Exception) else None)
            return
        self.broker = after(BROKER, self.broker, BrokerEvent.OPENED)
        self._backend = task.result()
        if self._backend.link.is_closed:
            self._broker_ended(None)
            return
        self._drained()

    async def backend(self) -> Backend:
        """The connection to the broker here, opened when it is first needed."""
        if self._backend is not None:
            return self._backend
        return await asyncio.shield(self._open_backend())

    # The end

    def tick(self, now: float) -> None:
        """Count what has passed, and close what does not go on: a client that does not sign in, or end its request, or
        take or send anything for long; a broker that is silent.
        """
        self._nudge()
        if self.state is Client.CLOSED:
            return
        self._count_bytes()
        if self.state is Client.DRAINING:
            self._flush()
        moved = self._link.received + self._link.taken
        is_owed = self._at_work or (self._backend is not None and self._backend.answered < self._backend.passed)
        if moved != self._moved or (is_owed and not self._link.is_full):
            self._moved, self._moved_at = moved, now
        if self._hold.waits(self._drained):
            self._begun_at = now
        silent = None if self._backend is None else self._backend.silent_for(now, self.here.cluster.limits.answer_s)
        if self.state in (Client.GREETING, Client.SIGNING_IN) and now - self._opened_at > SIGN_IN_S:
            self.close(ConnectionError(f"the client has not signed in within {SIGN_IN_S:g} s"))
        elif self._head is not None and now - self._begun_at > (within := self._hold.within(self._head.size)):
            self.close(ConnectionError(f"a request did not come whole within {within:g} s"))
        elif now - self._moved_at > self._idle_s:
            self.close(ConnectionError(f"the client has taken and sent nothing for {self._idle_s:g} s"))
        elif silent is not None and self._backend is not None:
            self.close(BrokerUnreachable(self._backend.address, f"no answer within {silent:g} s"))

    def _nudge(self) -> None:
        self._link.nudge()
        if self._backend is not None:
            self._backend.link.nudge()

    def drain(self) -> None:
        """Read nothing more but the end of what has begun, and close when everything is answered."""
        if self.state is Client.CLOSED:
            return
        self.state = after(CLIENT, self.state, ClientEvent.DRAIN)
        if not self._is_within:
            self._link.pause()
        if self._backend is not None:
            self._backend.behind_all(self._flush)
        self._flush()

    def _count_bytes(self) -> None:
        cluster, (came, went) = self.here.cluster.name, self._counted
        self._counted = self._link.received, self._link.sent
        self._counts.bytes_in[cluster] += self._link.received - came
        self._counts.bytes_out[cluster] += self._link.sent - went

    def close(self, error: Exception | None) -> None:
        """Close both connections."""
        if self.state is Client.CLOSED:
            return
        self.state = after(CLIENT, self.state, ClientEvent.CLOSE)
        self.broker = after(BROKER, self.broker, BrokerEvent.CLOSE)
        self._count_bytes()
        if error is not None:
            self._counts.failures[self.here.cluster.name, type(error).__name__] += 1
            level = logging.WARNING if isinstance(error, KafkaError | MalformedFrame) else logging.DEBUG
            log.log(level, "%s: connection closed: %s", self.peer, error)
        for task in self._tasks:
            task.cancel()
        self._gathered = self._head = None
        self._hold.forget(self._drained)
        self._hold.release(self._item)
        if self._connected is not None:
            self._connected.cancel()
        if self._backend is not None:
            self._backend.close(after_sending=error is None)
        self._link.close(after_sending=error is None)
        self._closed(self)

    def _ended(self, error: Exception | None) -> None:
        self.close(error)

    def _broker_ended(self, error: Exception | None) -> None:
        # While we sign in, `dial` raises the reason: a broker that refuses us closes the connection behind its answer.
        if self.broker is not Broker.CONNECTING:
            self.close(error or BrokerUnreachable(self.here.cluster.name, "the broker closed the connection"))
