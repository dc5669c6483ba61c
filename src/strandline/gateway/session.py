"""One client: what comes for it, and what it is told. What it says: `dialogue.py`; where it is: `whereabouts.py`."""

import asyncio
import secrets
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from strandline.core.audience import Wanted
from strandline.core.gap import Gap
from strandline.gateway.auth import Identity
from strandline.gateway.feed import Feed, Record
from strandline.gateway.hub import Hub, gap_frame
from strandline.gateway.kept import Kept
from strandline.gateway.limits import Limits
from strandline.gateway.whereabouts import Behind, Whereabouts
from strandline.wire.asked import ERROR
from strandline.wire.envelope import frame, numbered
from strandline.wire.resume_token import Positions, Signer

if TYPE_CHECKING:
    from strandline.kafka.partition import Partition
    from strandline.wire.asked import Missed, Said

SLOW = 4008
SLOW_REASON = "too slow: resume from where you are"


class Wire(Protocol):
    """The connection that a session writes to."""

    is_slow: bool
    address: str

    def write(self, data: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...

    async def drained(self) -> None: ...


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

    def token(self, session: "Session", positions: Positions | None = None) -> str: ...

    async def look(self) -> None: ...


class Session:
    """Answers a client. What takes time is done by one task, which a new request replaces."""

    __slots__ = (
        "_hub",
        "_kept",
        "_limits",
        "_looking",
        "_owes_token",
        "_replay",
        "_replaying",
        "_wire",
        "at",
        "held",
        "identity",
        "is_plain",
        "missed",
        "name",
        "seq",
        "server",
        "wanted",
    )

    def __init__(self, server: Serving, wire: Wire, identity: Identity) -> None:
        self.server = server
        self._hub: Hub = server.hub
        self._limits: Limits = server.limits
        self._wire = wire
        self.identity = identity
        self.name = secrets.token_hex(8)
        """What replays of a client without a `client_id` are counted by: each connection is a client then."""
        self.wanted = Wanted()
        self.at = Whereabouts(server.hub)
        self.is_plain = True
        """Whether what comes may be written as it is: live on all partitions, and not slow."""
        self.seq = 1
        self.missed: Missed | None = None
        """Positions of a client that has not said yet what it wants to hear."""
        self.held: list[Said] | None = None
        """What it has said since something that has to be found out before anything else is done; None without that."""
        self._looking: asyncio.Task[None] | None = None
        self._kept = Kept()
        self._owes_token = False
        """Whether it is to have a token behind what is kept back."""
        self._replay: Replay | None = None
        self._replaying: asyncio.Task[None] | None = None
        self._hub.sessions[self] = None

    @property
    def owner(self) -> str:
        """Whom limits are kept by, however the client calls itself: its subject, or where it comes from."""
        identity = self.identity
        return f"from {self._wire.address}" if identity.is_anonymous else f"subject {identity.subject}"

    # What it wants.

    def want(self, channels: Iterable[str]) -> None:
        """Hear these channels too."""
        has_more = False
        for channel in channels:
            has_more = has_more or not self.wanted.covers(channel)
            self.wanted.add(channel)
            self._hub.audience.add(self, channel)
        if has_more:
            self.at.hear_more()

    def forgo(self, channels: Sequence[str]) -> None:
        """Hear these channels no more."""
        for channel in channels:
            if channel in self.wanted:
                self.wanted.remove(channel)
                self._hub.audience.remove(self, channel)
        self.tell({"type": "unsubscribed", "channels": list(channels)})

    def hold(self, work: Coroutine[Any, Any, None]) -> None:
        """Find something out; what it says meanwhile waits for that."""
        self.held = []
        self._looking = asyncio.create_task(work)

    def give_credit(self, credit: int) -> None:
        """Take so many more messages of the replay."""
        if self._replay is not None:
            self._replay.credit += credit
            self._replay.more.set()

    # Where it is.

    def go_behind(self, places: Mapping[Feed, Behind], replay: Replay) -> None:
        """Replay from these places; in this same step nothing more comes live on their partitions."""
        if self._replaying is not None:
            self._replaying.cancel()
        # The next page of what was paid for already.
        replay.is_paid = self.at.go_behind(places)
        self._update()
        self._replay = replay
        self._replaying = asyncio.create_task(self.server.replay(self, replay))

    def go_live(self, feed: Feed, since: int) -> None:
        """Be live on a partition from its end on, having had all since an offset."""
        self.at.go_live(feed, since)
        self._update()

    def _update(self) -> None:
        self.is_plain = not self.at.behind and not self._wire.is_slow and not self._kept

    def offer_next(self) -> str:
        """A token for the next page, which costs nothing more."""
        self.at.offer_next()
        return self.server.token(self)

    def positions(self) -> Positions:
        """Where it is on every partition."""
        return self.at.positions(self._kept.firsts())

    # What comes from Kafka.

    def offer(self, feed: Feed, run: Sequence[Record]) -> None:
        """Take what comes live while something stands in the way of just writing it."""
        if feed in self.at.behind:
            return
        if not self._wire.is_slow and not self._kept:
            self.send([record.frame for record in run])
        elif self._is_replaying and not self._kept and not self._are_conflated(run):
            # A replay fills the queue faster than anybody reads: that is no reason to close, and it can send this too.
            self.at.fall_behind(feed, run[0].offset)
        else:
            self._take_slowly(feed, run)

    @property
    def _is_replaying(self) -> bool:
        return self._replaying is not None and not self._replaying.done()

    def _are_conflated(self, run: Sequence[Record]) -> bool:
        return all(self.server.conflates(record.channel) for record in run)

    def _take_slowly(self, feed: Feed, run: Sequence[Record]) -> None:
        for record in run:
            if not self.server.conflates(record.channel) or self._kept.nbytes > self._limits.queue_bytes:
                self._wire.close(SLOW, SLOW_REASON)
                return
            self._kept.put(feed, record)

    def miss(self, feed: Feed, gap: Gap, told: bytes) -> None:
        """Hear live that something does not come, behind all that came before."""
        if self._kept:
            self._kept.miss(feed, gap)
        else:
            self.write(told)

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
            for feed, item in self._kept.take():
                if isinstance(item, Gap):
                    self.write(gap_frame(feed.partition, item))
                else:
                    self.send([item.frame])
            if self._owes_token:
                self.tell_token()
        self._update()

    @property
    def is_slow(self) -> bool:
        """Whether so much waits to be written that nothing more is to be."""
        return self._wire.is_slow

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

    def feed_replaced(self, old: Feed, new: Feed | None, gap: Gap) -> None:
        """A partition is not what it was: go on with the one in its place."""
        self.tell_gaps(old.partition, self.at.replace(old, new, gap))
        self._update()
        if self in self._hub.ahead:
            self.feed_moved()

    # What the client is told.

    def tell(self, message: Mapping[str, Any]) -> None:
        """Write a message that is no record."""
        self.write(frame(msgspec.json.encode(message)))

    def tell_gaps(self, partition: "Partition", gaps: Iterable[Gap]) -> None:
        """Tell what it does not get."""
        for gap in gaps:
            self.write(gap_frame(partition, gap))

    def tell_error(
        self, code: str, message: str, retry_after: float | None = None, *, answer: str = ERROR, **more: Any
    ) -> None:
        """Tell that something was not done."""
        told: dict[str, Any] = {"type": answer, "code": code, "message": message, **more}
        self.tell(told if retry_after is None else {**told, "retry_after": retry_after})

    def tell_token(self) -> None:
        """Give it a token for where it is now, where that is known, behind what is kept back for it.

        One before that would speak of the log as it is now; who is cut off in between would not hear what was lost.
        """
        self._owes_token = bool(self._kept)
        if self.wanted and self.at.is_known and not self._kept:
            self.tell({"type": "token", "token": self.server.token(self)})

    def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        self._wire.close(code, reason)

    def ended(self) -> None:
        """The connection is gone."""
        for task in (self._replaying, self._looking):
            if task is not None:
                task.cancel()
        for pattern in self.wanted:
            self._hub.audience.remove(self, pattern)
        self._hub.sessions.pop(self, None)
