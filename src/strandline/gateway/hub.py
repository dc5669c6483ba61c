"""Where what comes from Kafka meets those who asked for it. Everything here happens within one turn of the event loop.

A session is either live on a partition, then what comes goes out to it at once, or behind on it, then only a replay
sends to it. It changes from one to the other in the same step in which the replay has sent the last that there is: so
there is no gap, no repeat and no other order where the two meet.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from strandline.core.audience import Audience
from strandline.core.gap import Gap
from strandline.gateway.feed import Feed, Read, Record
from strandline.wire.envelope import frame, numbered

if TYPE_CHECKING:
    from strandline.gateway.session import Session
    from strandline.kafka.partition import Partition

# Frames that go out together, at most.
RUN_BYTES = 64 << 10


class Hub:
    """All partitions and all sessions of one process."""

    def __init__(self) -> None:
        self.feeds: dict[Partition, Feed] = {}
        self.sessions: dict[Session, None] = {}
        self.audience: Audience[Session] = Audience()
        self.ahead: dict[Session, None] = {}
        """Those who were further, with another process, than this one has come yet."""
        self.delivered = 0

    def topics(self) -> dict[str, list[Feed]]:
        """The partitions of each topic."""
        found: dict[str, list[Feed]] = {}
        for feed in self.feeds.values():
            found.setdefault(feed.partition.topic, []).append(feed)
        return found

    def came(self, feed: Feed, read: Read) -> None:
        """Hold what has come of a partition, and send it to all who are live on it."""
        feed.take(read)
        run: list[Record] = []
        size = 0
        to: tuple[Session, ...] = ()
        for item in read.items:
            if isinstance(item, Gap):
                self._send(feed, run, to)
                run, to = [], ()
                self._tell(feed, item)
                continue
            audience = self.audience.of(item.channel)
            if run and (size > RUN_BYTES or (audience is not to and audience != to)):
                self._send(feed, run, to)
                run = []
            if not run:
                to, size = audience, 0
            if audience:
                run.append(item)
                size += len(item.frame)
        self._send(feed, run, to)
        for session in self.ahead:
            session.feed_moved()

    def added(self) -> None:
        """A partition is there that was not before: who hears anything hears it from its beginning."""
        for session in self.sessions:
            if session.wanted:
                session.at.begin_live()

    def replaced(self, old: Feed, gap: Gap) -> None:
        """Tell everybody that a partition is not what it was; the one in its place is there already, or is none."""
        self._tell(old, gap)
        for session in list(self.sessions):
            session.feed_replaced(old, self.feeds.get(old.partition), gap)

    def _send(self, feed: Feed, run: Sequence[Record], to: Iterable["Session"]) -> None:
        if not run:
            return
        plain: list[Session] = []
        others: list[Session] = []
        for session in to:
            (plain if session.is_plain else others).append(session)
        if plain:
            frames = [record.frame for record in run]
            for session, data in zip(plain, numbered(frames, [session.seq for session in plain]), strict=True):
                session.seq += len(run)
                session.write(data)
            self.delivered += len(plain) * len(run)
        for session in others:
            session.offer(feed, run)

    def _tell(self, feed: Feed, gap: Gap) -> None:
        data = gap_frame(feed.partition, gap)
        for session in list(self.sessions):
            if session.wanted and feed not in session.at.behind:
                session.miss(feed, gap, data)


def gap_frame(partition: "Partition", gap: Gap) -> bytes:
    """What a client is told of offsets that it does not get: from the first to the last of them."""
    told = {
        "type": "gap",
        "topic": partition.topic,
        "partition": partition.number,
        "from": gap.first,
        # Where nobody knows how many there were.
        "to": gap.end - 1 if gap.end > gap.first else None,
        "reason": gap.reason.value,
    }
    return frame(msgspec.json.encode(told))
