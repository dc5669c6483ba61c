"""One member of a consumer group, for asyncio: records with claims, rebalances, pauses, and proof of ownership."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta

from strandline.clock import AwakeClock
from strandline.errors import OptionError
from strandline.kafka.claim import Claim
from strandline.kafka.events import Assigned, Event, Lost, Revoked
from strandline.kafka.mailbox import Mailbox
from strandline.kafka.ownership import Begin, Proof
from strandline.kafka.partition import Partition
from strandline.kafka.polling import Polling
from strandline.kafka.progress import Progress
from strandline.units import Nanos, nanos

OURS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
}
DEFAULTS = {
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 64 << 10,
    "fetch.max.bytes": 8 << 20,
    # librdkafka rests for a second when its queue is full, longer than it takes us to empty it.
    "fetch.queue.backoff.ms": 20,
    "socket.timeout.ms": 10_000,
    # Within this time new topics and partitions are found.
    "topic.metadata.refresh.interval.ms": 10_000,
}

log = logging.getLogger(__name__)
clock = AwakeClock()


class GroupMember:
    """Takes the records of its share of some topics, and commits what is done.

    `begin` may say at which offsets partitions start that this member has not had before. Those that it does not name,
    and those that come back, start at what the group has committed, and without that where `auto.offset.reset` says.

    At most `hold_records` records and `hold_bytes` bytes wait for `next`, beside what librdkafka has read ahead
    (`queued.max.messages.kbytes`, 64 MiB).
    """

    def __init__(
        self,
        settings: Mapping[str, object],
        topics: Sequence[str],
        *,
        begin: Begin | None = None,
        poll_records: int = 500,
        hold_records: int = 5_000,
        hold_bytes: int = 16 << 20,
        commit_every: timedelta = timedelta(seconds=1),
        hand_over: timedelta = timedelta(seconds=5),
        start_within: timedelta = timedelta(seconds=10),
    ) -> None:
        if "group.id" not in settings:
            raise OptionError("a member of a group needs the setting 'group.id'")
        for name in sorted(OURS.keys() & settings.keys()):
            raise OptionError(f"'{name}' cannot be set for a member of a group; it is {str(OURS[name]).lower()}")
        if not topics or min(poll_records, hold_records, hold_bytes) < 1:
            raise OptionError("a member reads at least one topic, and takes at least one record and one byte")
        self.progress = Progress()
        """Frontiers, what is in flight and the oldest of it, for each partition."""
        self._settings = {**DEFAULTS, **settings, **OURS}
        self._topics = list(topics)
        self._begin = begin
        self._poll_records = poll_records
        self._hold_records, self._hold_bytes = hold_records, hold_bytes
        self._commit_every, self._hand_over, self._start_within = commit_every, hand_over, start_within
        self._seen: dict[Partition, int] = {}

    async def start(self) -> None:
        """Begin to join the group."""
        loop = asyncio.get_running_loop()
        self._mail = Mailbox(loop, max_records=self._hold_records, max_bytes=self._hold_bytes)
        self._polling = Polling(
            self._settings,
            self._topics,
            self.progress,
            self._mail,
            begin=self._begin,
            poll_records=self._poll_records,
            commit_every=self._commit_every,
            hand_over=self._hand_over,
            start_within=self._start_within,
        )
        self._polling.start()

    async def next(self) -> Event:
        """What happened next. Cancelled, it has taken nothing."""
        event = await self._mail.get()
        if isinstance(event, Assigned):
            self._seen.update(dict.fromkeys(event.partitions, event.generation))
        elif isinstance(event, Revoked | Lost):
            for partition in event.partitions:
                self._seen.pop(partition, None)
        return event

    def done(self, claim: Claim) -> None:
        """A record is finished: its offset may be committed once all before it are. From any thread."""
        self.progress.done(claim)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Take no more records of these partitions; what was taken still comes. Forgotten when they are revoked."""
        self._order(True, partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Take records of these partitions again."""
        self._order(False, partitions)

    def _order(self, pause: bool, partitions: Iterable[Partition]) -> None:
        # An order is for the ownership that its giver has heard of, not for a later one.
        self._polling.orders.append((pause, {p: self._seen[p] for p in partitions if p in self._seen}))

    async def prove(self, within: timedelta = timedelta(seconds=5)) -> bool:
        """Whether all that `next` has assigned to us is still ours, shown by a commit made now; else False."""
        proof = Proof(Future(), Nanos(clock.monotonic() + nanos(within)), dict(self._seen))
        self._polling.ownership.asked.append(proof)
        self._mail.interrupt()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(proof.answer), within.total_seconds())
        except TimeoutError:
            return False

    def stalled_for(self, now: Nanos) -> Nanos:
        """The longest time without a sign of life of the thread that polls, since the last proof; by AwakeClock.

        From any thread.
        """
        return self._polling.pulse.silence(now)

    @property
    def id(self) -> str:
        """What the group calls us since it gave us partitions last; empty before. From any thread."""
        return self._polling.ownership.member

    def ends(self) -> Mapping[Partition, int]:
        """The ends of our partitions, heard of a second ago or so. From any thread."""
        return self._polling.ends

    def frontiers(self) -> dict[Partition, int]:
        """Where the next owner of each of our partitions is to begin, as far as it is known. From any thread."""
        marks = {partition: self._polling.ownership.mark(partition) for partition in self.progress.owned()}
        return {partition: mark for partition, mark in marks.items() if mark is not None}

    def lag(self) -> dict[Partition, int]:
        """How many offsets lie between what is done and the end, for partitions of which both are known."""
        ends = self.ends()
        return {p: max(0, ends[p] - mark) for p, mark in self.frontiers().items() if p in ends}

    async def stop(self, within: timedelta = timedelta(seconds=10)) -> None:
        """Commit what is done and leave the group, as far as there is time for it."""
        self._polling.stopping.set()
        self._mail.interrupt()
        await asyncio.to_thread(self._polling.join, within.total_seconds())
        if self._polling.is_alive():
            log.warning("the group has not let us go within %s; it will notice that we are gone", within)
