"""Sends a client what it missed, partition by partition, and lets it become live the moment it has all."""

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from websockets.frames import CloseCode

from strandline.core.gap import ANOTHER_LOG, Gap
from strandline.errors import KafkaError
from strandline.gateway.commons import Commons
from strandline.gateway.feed import Feed, Item
from strandline.gateway.history import LEAST_BYTES, MOST_BYTES, History
from strandline.gateway.limits import Limits
from strandline.gateway.messages import Counts
from strandline.gateway.session import SLOW, SLOW_REASON, Refused, Replay, Session
from strandline.gateway.whereabouts import Behind
from strandline.wire.asked import RECONNECT_ERROR
from strandline.wire.envelope import replayed
from strandline.wire.resume_token import Position

AT_ONCE = 1000
NO_BOUND = 1 << 60
WRITE_BYTES = 256 << 10
# A client may have been served by a process that was ahead of this one; for longer it cannot have been.
AHEAD_S = 30.0
# How long a replay waits for a client that takes nothing.
DRAIN_S = 30.0

log = logging.getLogger(__name__)


class Replaying:
    """One replay of one session. Whatever is awaited, the session may have changed its mind meanwhile."""

    def __init__(
        self,
        session: Session,
        replay: Replay,
        *,
        history: History,
        limits: Limits,
        commons: Commons,
        counts: Counts,
    ) -> None:
        self._session = session
        self._replay = replay
        self._history = history
        self._limits = limits
        self._commons = commons
        self._slot: int | None = None
        """What it has been allowed to read old records by, while it has."""
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._page_ends = self._loop.time() + limits.page_s
        self._read_bytes = LEAST_BYTES
        self._is_told = False
        """Whether the client knows already how it ends."""

    async def run(self) -> None:
        """Go on until the session is live everywhere."""
        begin = self._loop.time()
        self._counts.replays += 1
        try:
            while self._session.at.behind:
                await self._go_on()
        except Refused as error:
            self._fail(error)
        except KafkaError as error:
            # Where the brokers are is no business of a client's.
            self._log(logging.WARNING, "old records cannot be read", error=str(error))
            self._fail(Refused("unavailable", "old records cannot be read now", self._limits.page_s))
        except TimeoutError:
            self._session.close(SLOW, SLOW_REASON)
        except Exception:
            log.exception("a replay has failed")
            self._session.close(CloseCode.INTERNAL_ERROR, "the gateway has failed; resume from where you are")
        else:
            self._counts.replays_done += 1
            self._counts.replay_s += self._loop.time() - begin
            # What came from memory has no rate, and would fill the log.
            level = logging.INFO if self._replay.is_paid else logging.DEBUG
            self._log(level, "replay completed", seconds=round(self._loop.time() - begin, 3))
            if not self._is_told:
                text = f"Replayed {self._replay.sent} missed messages"
                self._answer("completed", text, {"token": self._session.server.token(self._session)})
        finally:
            self._leave_slot()

    async def _go_on(self) -> None:
        behind = self._session.at.behind
        if unknown := [(feed, place) for feed, place in behind.items() if place.since is None]:
            # All of them before anything is sent: a token for the next page says of each where it is.
            for feed, place in unknown:
                await self._begin(feed, place)
            return
        feed, place = next(iter(behind.items()))
        if place.position.offset > feed.end:
            await self._await_feed(feed, place)
        elif self._replay.credit <= 0 or self._loop.time() > self._page_ends:
            await self._end_page()
        else:
            await self._step(feed, place)

    async def _begin(self, feed: Feed, place: Behind) -> None:
        if self._session.at.behind.get(feed) is not place:
            return
        gaps: Sequence[Gap] = ()
        if place.time is None:
            offset, gaps = await self._history.begin(feed, place.position)
        else:
            # Which offset that is nobody knows but Kafka: so it counts as read from there, wherever it lies.
            await self._take_slot()
            offset = max(feed.horizon, await self._history.since(feed, place.time))
        if self._session.at.behind.get(feed) is not place:
            return
        if offset < feed.recent.first:
            await self._take_slot()
            if self._session.at.behind.get(feed) is not place:
                return
        self._session.tell_gaps(feed.partition, gaps)
        place.since = offset
        self._reach(feed, place, offset)
        if any(gap.reason in ANOTHER_LOG for gap in gaps):
            # The client's token speaks of a log that is no more.
            self._session.tell_token()

    async def _take_slot(self) -> None:
        """Be one of those who are sent old records now; what it waits for that is no time of its page."""
        if self._slot is None:
            began = self._loop.time()
            session, replay = self._session, self._replay
            name = replay.client_id or session.name
            self._slot = await self._commons.begin_replay(
                session.owner, name, session.identity.rank, is_paid=replay.is_paid
            )
            self._replay.is_paid = True
            self._page_ends += self._loop.time() - began

    def _leave_slot(self) -> None:
        if self._slot is not None:
            self._commons.end_replay(self._slot)
            self._slot = None

    async def _await_feed(self, feed: Feed, place: Behind) -> None:
        try:
            with self._session.ahead():
                async with asyncio.timeout(AHEAD_S):
                    while self._session.at.behind.get(feed) is place and place.position.offset > feed.end:
                        self._replay.more.clear()
                        await self._replay.more.wait()
        except TimeoutError:
            raise Refused("unavailable", "the gateway has not read so far yet", self._limits.page_s) from None
        if self._session.at.behind.get(feed) is place:
            self._reach(feed, place, place.position.offset)

    async def _step(self, feed: Feed, place: Behind) -> None:
        offset = place.position.offset
        if offset >= feed.recent.first:
            items, reached = feed.since(offset, AT_ONCE)
        else:
            await self._take_slot()
            chunk = await self._history.read(feed, offset, self._read_bytes)
            # Little for who wants a page, much for who wants all.
            self._read_bytes = min(2 * self._read_bytes, MOST_BYTES)
            if self._session.at.behind.get(feed) is not place:
                return
            items, reached = chunk.since(offset, AT_ONCE)
        stop = feed.end if place.barrier is None else place.barrier
        reached = self._send(feed, items, min(reached, stop))
        self._reach(feed, place, reached)
        if self._session.is_slow:
            self._leave_slot()
            async with asyncio.timeout(DRAIN_S):
                await self._session.drained()
        elif self._session.at.behind:
            # One whose channels have nothing in all this would keep everybody else waiting.
            await asyncio.sleep(0)

    def _send(self, feed: Feed, items: Sequence[Item], stop: int) -> int:
        """Send what lies before an offset and is wanted; up to where it came."""
        frames: list[bytes] = []
        size = 0
        for item in items:
            place = item.first if isinstance(item, Gap) else item.offset
            if place >= stop:
                break
            if isinstance(item, Gap):
                self._flush(frames)
                frames = []
                # What of it lies behind is told when it comes there; or never, to who had it live before it was lost.
                self._session.tell_gaps(feed.partition, [replace(item, end=min(item.end, stop))])
            elif self._session.wanted.has(item.channel):
                if len(frames) >= self._replay.credit or size > WRITE_BYTES:
                    stop = place
                    break
                frames.append(replayed(item.frame))
                size += len(item.frame)
        self._flush(frames)
        return stop

    def _flush(self, frames: Sequence[bytes]) -> None:
        if frames:
            self._session.send(frames)
            self._replay.credit -= len(frames)
            self._replay.sent += len(frames)
            self._counts.replayed += len(frames)

    def _reach(self, feed: Feed, place: Behind, offset: int) -> None:
        """Be at an offset; live where that is the end."""
        if place.barrier is not None and offset >= place.barrier:
            offset, place.barrier = max(offset, place.then), None
        place.position = Position(offset, feed.topic_id)
        if offset == feed.end and place.since is not None:
            self._session.go_live(feed, place.since)

    async def _end_page(self) -> None:
        self._leave_slot()
        if self._replay.waits:
            self._replay.more.clear()
            self._answer(
                "partial", f"Replayed {self._replay.sent} messages so far", {"next": self._session.offer_next()}
            )
            if self._replay.credit <= 0:
                await self._replay.more.wait()
            self._page_ends = self._loop.time() + self._limits.page_s
            return
        following = self._session.offer_next()
        missing = self._pass_over()
        # What is left came after it was live already.
        self._replay.credit, self._page_ends, self._is_told = NO_BOUND, math.inf, True
        text = f"Replayed {self._replay.sent} missed messages; resume from 'next' for the rest"
        self._answer("partial", text, {"next": following, "missing": missing})

    def _pass_over(self) -> list[dict[str, Any]]:
        """Be live where it is behind, or on the way to it; what it is not sent by that."""
        missing = []
        for feed, place in list(self._session.at.behind.items()):
            if place.was_live or place.position.offset > feed.end:
                continue  # it misses nothing there: what came is sent to it yet, or it was further than this process
            stop = feed.end if place.barrier is None else place.barrier
            missing += _range(feed, place.position.offset, stop)
            place.since = stop
            self._reach(feed, place, stop)
        return missing

    def _answer(self, status: str, message: str, more: dict[str, Any]) -> None:
        told = {"status": status, "messages_replayed": self._replay.sent, "message": message}
        self._session.tell({"type": self._replay.answer, **told, **more})

    def _fail(self, why: Refused) -> None:
        self._counts.replays_failed += 1
        self._log(logging.DEBUG, "replay refused", code=why.code)
        if self._replay.waits:
            self._session.tell_error(why.code, str(why), why.retry_after)
            return
        # Its client may know of no way to ask again: so it hears what comes, as it would have without having asked.
        more: dict[str, Any] = {"next": self._session.server.token(self._session), "missing": []}
        for feed, place in list(self._session.at.behind.items()):
            at = place.position.offset
            if place.barrier is not None:
                more["missing"] += _range(feed, at, place.barrier)
                at = place.then
            more["missing"] += _range(feed, at, feed.end)
            self._session.go_live(feed, feed.end)
        self._session.tell_error(why.code, str(why), why.retry_after, answer=RECONNECT_ERROR, **more)

    def _log(self, level: int, what: str, **facts: object) -> None:
        who = {"subject": self._session.identity.subject, "client_id": self._replay.client_id}
        log.log(level, what, extra={**who, "messages_replayed": self._replay.sent, **facts})


def _range(feed: Feed, first: int, end: int) -> list[dict[str, Any]]:
    """Offsets that are not sent, as a client is told of them; none where there are none."""
    topic, number = feed.partition
    return [{"topic": topic, "partition": number, "from": first, "to": end - 1}] if first < end else []
