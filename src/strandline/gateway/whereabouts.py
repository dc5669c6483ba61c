"""Where a client is on each partition: live, or behind and being sent what it missed."""

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.core.gap import Gap, Reason
from strandline.gateway.feed import Feed
from strandline.gateway.hub import Hub
from strandline.kafka.partition import Partition
from strandline.wire.asked import NotUnderstood
from strandline.wire.resume_token import Position, Positions

Told = Mapping[str, dict[int, Position] | Position]
"""By topic: a position on each partition, or one alone where the client knows no partitions."""


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
    was_live: bool = False
    """Whether it was live here, and what came was too much at once beside a replay."""


class NotHere(NotUnderstood):
    """A partition that is not known here; one that was signed for is known elsewhere, and will be here."""

    def __init__(self, topic: str, number: int, *, is_signed: bool) -> None:
        super().__init__("unknown_partition", f"'{topic}' has no partition {number}")
        self.is_signed = is_signed


class Whereabouts:
    """The places of one session."""

    __slots__ = ("_hub", "_offered", "_since", "behind")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.behind: dict[Feed, Behind] = {}
        self._since: dict[Feed, int] = {}
        """Where it became live, by partition."""
        self._offered: dict[Feed, int] | None = None
        """Where the next page begins that was offered to it."""

    def places(self, told: Told) -> dict[Feed, Behind]:
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
                raise NotHere(topic, unknown, is_signed=by_number[unknown].topic_id is not None)
            found |= {feed: Behind(by_number.get(number, Position(0))) for number, feed in feeds.items()}
        return found

    def is_of_another_log(self, told: Positions) -> bool:
        """Whether something that is told is of a topic made anew: since then, or before this process has seen it."""
        ids = {(feed.partition.topic, feed.topic_id) for feed in self._hub.feeds.values()}
        served = {topic for topic, _ in ids}
        return any(
            topic in served and place.topic_id is not None and (topic, place.topic_id) not in ids
            for topic, places in told.items()
            for place in places.values()
        )

    def take_gone(self, told: Positions) -> list[tuple[Partition, Gap]]:
        """Take out what is told of topics that are served no more, and of partitions that one made anew has not."""
        ids = {(feed.partition.topic, feed.topic_id) for feed in self._hub.feeds.values()}
        served = {topic for topic, _ in ids}
        gone = []
        for topic in [topic for topic in told if topic not in served]:
            gone += [
                (Partition(topic, number), Gap(place.offset, place.offset, Reason.NOT_SERVED))
                for number, place in told.pop(topic).items()
            ]
        for topic, places in told.items():
            for number, place in list(places.items()):
                partition = Partition(topic, number)
                is_of_another = place.topic_id is not None and (topic, place.topic_id) not in ids
                if topic in served and is_of_another and partition not in self._hub.feeds:
                    del places[number]
                    gone.append((partition, Gap(place.offset, place.offset, Reason.RECREATED)))
        return gone

    def places_at(self, time: int) -> dict[Feed, Behind]:
        """The first records with a time, in milliseconds, or a later one, on all partitions."""
        return {feed: Behind(Position(0), time=time) for feed in self._hub.feeds.values()}

    def hear_more(self) -> None:
        """More is wanted from now on: of what it had before it had not all, so none of it is passed over any more."""
        for feed in self._since:
            self._since[feed] = feed.end
        for place in self.behind.values():
            place.barrier = None
            if place.since is not None:
                place.since = place.position.offset

    def begin_live(self) -> None:
        """Be live from now on wherever it is not behind."""
        for feed in self._hub.feeds.values():
            if feed not in self.behind:
                self._since.setdefault(feed, feed.end)

    def go_behind(self, places: Mapping[Feed, Behind]) -> bool:
        """Be behind on partitions; whether these are the next page of what was offered last."""
        wanted = {feed: place.position.offset for feed, place in places.items()}
        was_offered = self._offered is not None and self._offered.items() <= wanted.items()
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
        return was_offered

    def fall_behind(self, feed: Feed, offset: int) -> None:
        """Be behind on a partition that it was live on: what comes from an offset on is replayed."""
        place = Position(offset, feed.topic_id)
        self.behind[feed] = Behind(place, since=self._since.get(feed, offset), was_live=True)

    def go_live(self, feed: Feed, since: int) -> None:
        """Be live on a partition from its end on, having had all since an offset."""
        del self.behind[feed]
        self._since[feed] = since

    def replace(self, old: Feed, new: Feed | None, gap: Gap) -> list[Gap]:
        """A partition is not what it was. Who was live on it was told of a gap; who was behind is to be told these."""
        if self._since.pop(old, None) is not None and new is not None:
            self._since[new] = new.end
        place = self.behind.pop(old, None)
        if place is None:
            return []
        if new is not None:
            self.behind[new] = place
        if gap.reason is Reason.TRUNCATED:
            return _cut_back(place, gap.first)
        if place.since is None and place.barrier is None:
            return []  # what it has seen of the old one shows when the log is asked
        at = place.position.offset
        if new is not None:
            first = new.recent.first
            self.behind[new] = Behind(Position(first, new.topic_id), since=first)
        return [Gap(at, at, Reason.RECREATED)]

    @property
    def is_known(self) -> bool:
        """Whether it is known everywhere which offset comes next; where a time was named that is to be found out."""
        return all(place.time is None or place.since is not None for place in self.behind.values())

    def offer_next(self) -> None:
        """The next page is from here."""
        self._offered = {feed: place.position.offset for feed, place in self.behind.items()}

    def positions_of(self, places: Mapping[Feed, Behind]) -> Positions:
        """The positions of places that it is to go to."""
        found: Positions = {}
        for feed, place in places.items():
            found.setdefault(feed.partition.topic, {})[feed.partition.number] = place.position
        return found

    def positions(self, kept: dict[Feed, int]) -> Positions:
        """Where it is on every partition: behind what came, or at the first of it that is kept back."""
        found: Positions = {}
        for feed in self._hub.feeds.values():
            place = self.behind.get(feed)
            if place is not None:
                at = place.position
            elif feed in kept:
                at = Position(kept[feed], feed.topic_id)
            else:
                at = Position(feed.end, feed.topic_id, feed.epoch)
            found.setdefault(feed.partition.topic, {})[feed.partition.number] = at
        for feed, first in reversed(kept.items()):
            if self._hub.feeds.get(feed.partition) is not feed:
                # It has not been told yet that the partition is not what it was.
                topic, number = feed.partition
                found.setdefault(topic, {})[number] = Position(first, feed.topic_id, feed.epoch)
        return found


def _cut_back(place: Behind, end: int) -> list[Gap]:
    """Be on a log that ends sooner than it did: what one has seen beyond the end is lost."""
    lost = []
    if place.since is not None and place.position.offset > end:
        lost.append(Gap(end, place.position.offset, Reason.TRUNCATED))
        place.position = place.position._replace(offset=end, epoch=None)
        place.since = min(place.since, end)
    if place.barrier is not None and place.then > end:
        lost.append(Gap(max(place.barrier, end), place.then, Reason.TRUNCATED))
        place.then = end
        if place.barrier >= end:
            place.barrier = None
    return lost


def as_text(positions: Positions) -> dict[str, dict[str, str]]:
    """Positions as a client is told them: digits, for a number of JavaScript's has no room for all."""
    return {
        topic: {str(number): str(place.offset) for number, place in places.items()}
        for topic, places in positions.items()
    }
