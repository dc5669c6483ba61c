"""One client: what it has asked for, where it is on each partition, and what it is answered."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from strandline.core.audience import Wanted
from strandline.core.gap import Gap, Reason
from strandline.gateway.feed import Feed, Record
from strandline.gateway.hub import Hub, gap_frame
from strandline.gateway.limits import Limits
from strandline.wire.asked import (
    Ack,
    Auth,
    Going,
    Missed,
    NotUnderstood,
    Ping,
    Reconnect,
    Resume,
    Said,
    Subscribe,
    Unsubscribe,
    partitions_of,
    positions_of,
)
from strandline.wire.envelope import frame, numbered
from strandline.wire.resume_token import BadToken, Position, Positions, Signer

SLOW = 4008
SLOW_REASON = "too slow: resume from where you are"

log = logging.getLogger(__name__)


class Wire(Protocol):
    """The connection that a session writes to."""

    is_slow: bool

    def write(self, data: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    async def drained(self) -> None: ...


@dataclass(slots=True)
class Behind:
    """Where a session is on a partition that it is not live on."""

    position: Position
    since: int | None = None
    """Where it began in this session; None until the log has been asked what there is of the position."""
    time: int | None = None
    """In place of a position: the time, in milliseconds, of the first record that is wanted."""
    barrier: int | None = None
    """Where what it had live before begins, if it had: from here it goes to `then`."""
    then: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a client is, and what it may hear."""

    subject: str
    allowed: Wanted | None = None
    """None: everything."""
    expires: int | None = None


@dataclass(slots=True)
class Replay:
    """What a client has asked to be sent again."""

    answer: str
    credit: int
    waits: bool
    """Whether it waits for more credit when it has none left; otherwise it goes live, and is told what it misses."""
    client_id: str = ""
    sent: int = 0
    is_paid: bool = False
    """Whether reading old records for it has been allowed already."""
    more: asyncio.Event = field(default_factory=asyncio.Event)


class Refused(Exception):
    """Something that a client may not have, with the code that it is told."""

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after


class Serving(Protocol):
    """What a session needs of the server."""

    hub: Hub
    limits: Limits
    signer: Signer

    def now(self) -> int: ...

    def identify(self, token: str) -> Identity: ...

    async def replay(self, session: "Session", replay: Replay) -> None: ...

    def conflates(self, channel: str) -> bool: ...

    def token(self, session: "Session") -> str: ...


class Session:
    """Answers a client. What takes time is done by one task, which a new request replaces."""

    __slots__ = (
        "_before",
        "_hub",
        "_kept",
        "_limits",
        "_offered",
        "_replay",
        "_replaying",
        "_server",
        "_since",
        "_wire",
        "behind",
        "identity",
        "is_plain",
        "seq",
        "wanted",
    )

    def __init__(self, server: Serving, wire: Wire, identity: Identity) -> None:
        self._server = server
        self._hub: Hub = server.hub
        self._limits: Limits = server.limits
        self._wire = wire
        self.identity = identity
        self.wanted = Wanted()
        self.behind: dict[Feed, Behind] = {}
        self.is_plain = True
        """Whether what comes may be written as it is: live on all partitions, and not slow."""
        self.seq = 1
        self._since: dict[Feed, int] = {}
        """Where it became live, by partition."""
        self._before: Mapping[str, dict[int, Position] | Position] | None = None
        """Positions of a client that has not said yet what it wants to hear."""
        self._kept: dict[tuple[Feed, str], tuple[Record, Gap | None]] = {}
        self._offered: dict[Feed, int] | None = None
        """Where the next page begins that was offered to it."""
        self._replay: Replay | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._hub.sessions[self] = None

    # What the client says.

    def said(self, message: Said) -> None:
        """Do what a message asks for."""
        try:
            match message:
                case Subscribe(data=data):
                    self._subscribe(data.channels)
                case Unsubscribe(data=data):
                    self._unsubscribe(data.channels)
                case Reconnect(data=missed):
                    self._reconnect(missed)
                case Resume(data=going):
                    self._resume(going)
                case Ack(data=more):
                    if self._replay is not None:
                        self._replay.credit += more.credit
                        self._replay.more.set()
                case Auth(data=fresh):
                    self._show(fresh.token)
                case Ping():
                    self.tell({"type": "pong"})
        except NotUnderstood as error:
            self.tell_error(error.code, str(error))
        except Refused as error:
            self.tell_error(error.code, str(error), error.retry_after)

    def _subscribe(self, channels: Sequence[str]) -> None:
        self._want(channels)
        if self._before is not None:
            before, self._before = self._before, None
            self._go_behind(self._places(before), Replay("reconnect_ack", self._limits.page, waits=False))
        for feed in self._hub.feeds.values():
            if feed not in self.behind:
                self._since.setdefault(feed, feed.end)
        told = {"type": "subscribed", "channels": list(channels), "positions": self._told_positions()}
        # Positions do not tell a topic from another of its name; a token does.
        self.tell({**told, "token": self._server.token(self)})

    def _unsubscribe(self, channels: Sequence[str]) -> None:
        for channel in channels:
            if channel in self.wanted:
                self.wanted.remove(channel)
                self._hub.audience.remove(self, channel)
        self.tell({"type": "unsubscribed", "channels": list(channels)})

    def _reconnect(self, missed: Missed) -> None:
        positions = positions_of(missed)
        if not self.wanted:
            self._before = positions
            text = "Subscribe, and what you missed comes first"
            self.tell({"type": "reconnect_ack", "status": "completed", "messages_replayed": 0, "message": text})
            return
        replay = Replay("reconnect_ack", self._limits.page, waits=False, client_id=missed.client_id)
        try:
            self._go_behind(self._places(positions), replay)
        except NotUnderstood as error:
            self.tell({"type": "reconnect_error", "code": error.code, "message": str(error)})

    def _resume(self, going: Going) -> None:
        if going.since is not None and (going.token is not None or going.positions is not None):
            raise NotUnderstood("bad_message", "a time, or a token and positions, not both")
        self._want(going.channels)
        if not self.wanted:
            raise NotUnderstood("no_channels", "nothing is subscribed to: name channels")
        positions = self._wished(going)
        credit = going.credit or self._limits.page
        self._go_behind(positions, Replay("resume_ack", credit, waits=True, client_id=going.client_id))
        for feed in self._hub.feeds.values():
            if feed not in self.behind:
                self._since.setdefault(feed, feed.end)

    def _wished(self, going: Going) -> dict[Feed, Behind]:
        """Where it wants to go on; positions are newer than the token that they come with."""
        if going.since is not None:
            return {feed: Behind(Position(0), time=going.since) for feed in self._hub.feeds.values()}
        places: Positions = {}
        if going.token is not None:
            try:
                places = self._server.signer.read(going.token, self.identity.subject, self._server.now())
            except BadToken as error:
                raise NotUnderstood(error.fault.value, "the token is not taken; resume by positions") from None
        for topic, numbers in (going.positions or {}).items():
            known = places.setdefault(topic, {})
            for number, offset in partitions_of(topic, numbers).items():
                if number not in known or offset > known[number].offset:
                    known[number] = Position(offset, known[number].topic_id if number in known else None)
        return self._places(places)

    def _show(self, token: str) -> None:
        """Go on as the same client for longer; what a newer token does not allow is unsubscribed."""
        identity = self._server.identify(token)
        if identity.subject != self.identity.subject:
            raise Refused("not_allowed", f"the token is not of {self.identity.subject}")
        self.identity = identity
        allowed = identity.allowed
        gone = [] if allowed is None else [pattern for pattern in self.wanted if not allowed.covers(pattern)]
        self.tell({"type": "authenticated", "expires": identity.expires})
        if gone:
            self._unsubscribe(gone)

    def _want(self, channels: Sequence[str]) -> None:
        allowed = self.identity.allowed
        if allowed is not None:
            refused = next((channel for channel in channels if not allowed.covers(channel)), None)
            if refused is not None:
                raise Refused("not_allowed", f"channel '{refused}' is not for {self.identity.subject}")
        fresh = [channel for channel in dict.fromkeys(channels) if channel not in self.wanted]
        if len(self.wanted) + len(fresh) > self._limits.subscriptions:
            raise Refused("too_many_subscriptions", f"at most {self._limits.subscriptions} channels")
        for channel in fresh:
            self.wanted.add(channel)
            self._hub.audience.add(self, channel)

    # Where it is.

    def _places(self, told: Mapping[str, dict[int, Position] | Position]) -> dict[Feed, Behind]:
        """The position on each partition of the topics that are told; a partition that is not told begins at 0."""
        topics = self._hub.topics()
        found: dict[Feed, Behind] = {}
        for topic, places in told.items():
            if topic not in topics:
                raise NotUnderstood("unknown_topic", f"topic '{topic[:249]}' is not served here")
            feeds = {feed.partition.number: feed for feed in topics[topic]}
            if isinstance(places, Position) and len(feeds) > 1:
                raise NotUnderstood(
                    "needs_partitions", f"'{topic}' has {len(feeds)} partitions: give an offset for each"
                )
            by_number = dict.fromkeys(feeds, places) if isinstance(places, Position) else places
            unknown = next((number for number in by_number if number not in feeds), None)
            if unknown is not None:
                raise NotUnderstood("unknown_partition", f"'{topic}' has no partition {unknown}")
            found |= {feed: Behind(by_number.get(number, Position(0))) for number, feed in feeds.items()}
        return found

    def _go_behind(self, places: Mapping[Feed, Behind], replay: Replay) -> None:
        """Replay from these places; in this same step nothing more comes live on their partitions."""
        if self._replaying is not None:
            self._replaying.cancel()
        # The next page of what was paid for already.
        wanted = {feed: place.position.offset for feed, place in places.items()}
        replay.is_paid = self._offered is not None and self._offered.items() <= wanted.items()
        self._offered = None
        for feed, place in places.items():
            before = self.behind.pop(feed, None)
            if before is None and feed in self._since:
                place.barrier, place.then = self._since[feed], feed.end
            elif before is not None and before.barrier is not None:
                place.barrier, place.then = before.barrier, before.then
            elif before is not None and before.since is not None:
                place.barrier, place.then = before.since, before.position.offset
            self.behind[feed] = place
        self._update()
        self._replay = replay
        self._replaying = asyncio.create_task(self._server.replay(self, replay))

    def go_live(self, feed: Feed, since: int) -> None:
        """Be live on a partition from its end on, having had all since an offset."""
        del self.behind[feed]
        self._since[feed] = since
        self._update()

    def _update(self) -> None:
        self.is_plain = not self.behind and not self._wire.is_slow and not self._kept

    def offer_next(self) -> str:
        """A token for the next page, which costs nothing more."""
        self._offered = {feed: place.position.offset for feed, place in self.behind.items()}
        return self._server.token(self)

    def positions(self) -> Positions:
        """Where it is on every partition."""
        found: Positions = {}
        for feed in self._hub.feeds.values():
            place = self.behind.get(feed)
            at = self._live_position(feed) if place is None else place.position
            found.setdefault(feed.partition.topic, {})[feed.partition.number] = at
        return found

    def _live_position(self, feed: Feed) -> Position:
        """Behind what came, or at the first of it that is kept back."""
        kept = [
            record.offset if lost is None else lost.first
            for (its, _), (record, lost) in self._kept.items()
            if its is feed
        ]
        return Position(min(kept), feed.topic_id) if kept else Position(feed.end, feed.topic_id, feed.epoch)

    def _told_positions(self) -> dict[str, dict[str, str]]:
        return {
            topic: {str(number): str(place.offset) for number, place in places.items()}
            for topic, places in self.positions().items()
        }

    # What comes from Kafka.

    def offer(self, feed: Feed, run: Sequence[Record]) -> None:
        """Take what comes live while something stands in the way of just writing it."""
        if feed in self.behind:
            return
        if self._wire.is_slow or self._kept:
            self._take_slowly(feed, run)
        else:
            self.send([record.frame for record in run])

    def _take_slowly(self, feed: Feed, run: Sequence[Record]) -> None:
        for record in run:
            if not self._server.conflates(record.channel):
                self._wire.close(SLOW, SLOW_REASON)
                return
            before, lost = self._kept.pop((feed, record.channel), (None, None))
            if before is not None:
                first = before.offset if lost is None else lost.first
                lost = Gap(first, before.offset + 1, Reason.CONFLATED)
            self._kept[feed, record.channel] = record, lost

    def send(self, frames: Sequence[bytes]) -> None:
        """Write frames of records, with numbers."""
        (data,) = numbered(frames, [self.seq])
        self.seq += len(frames)
        self._hub.delivered += len(frames)
        self.write(data)

    def write(self, data: bytes) -> None:
        """Write frames as they are."""
        self._wire.write(data)

    def writable(self, is_slow: bool) -> None:
        """The connection has become slow, or takes more again."""
        if not is_slow and self._kept:
            kept = sorted(self._kept.items(), key=lambda item: (item[0][0].partition, item[1][0].offset))
            self._kept.clear()
            for (feed, _), (record, lost) in kept:
                if lost is not None:
                    self.write(gap_frame(feed, lost))
                self.send([record.frame])
        self._update()

    async def drained(self) -> None:
        """Wait until the connection takes more."""
        await self._wire.drained()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Be told meanwhile when something comes."""
        self._hub.ahead[self] = None
        try:
            yield
        finally:
            self._hub.ahead.pop(self, None)

    def feed_moved(self) -> None:
        """Something has come that it may be waiting for."""
        if self._replay is not None:
            self._replay.more.set()

    def feed_replaced(self, old: Feed, new: Feed | None) -> None:
        """A partition is not what it was: go on from the beginning of the one in its place."""
        self._since.pop(old, None)
        if self.behind.pop(old, None) is not None and new is not None:
            self.behind[new] = Behind(Position(new.recent.first), since=new.recent.first)
        self._update()

    # What the client is told.

    def tell(self, message: Mapping[str, Any]) -> None:
        """Write a message that is no record."""
        self.write(frame(msgspec.json.encode(message)))

    def tell_gaps(self, feed: Feed, gaps: Iterable[Gap]) -> None:
        """Tell what it does not get."""
        for gap in gaps:
            self.write(gap_frame(feed, gap))

    def tell_error(self, code: str, message: str, retry_after: float | None = None) -> None:
        """Tell that something was not done."""
        told: dict[str, Any] = {"type": "error", "code": code, "message": message}
        self.tell(told if retry_after is None else {**told, "retry_after": retry_after})

    def tell_token(self) -> None:
        """Give it a token for where it is now."""
        if self.wanted:
            self.tell({"type": "token", "token": self._server.token(self)})

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        self._wire.close(code, reason)

    def ended(self) -> None:
        """The connection is gone."""
        if self._replaying is not None:
            self._replaying.cancel()
        for pattern in self.wanted:
            self._hub.audience.remove(self, pattern)
        self._hub.sessions.pop(self, None)
