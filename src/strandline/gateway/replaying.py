"""Sends a client what it missed, partition by partition, and lets it become live the moment it has all."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from strandline.core.gap import Gap
from strandline.errors import KafkaError
from strandline.gateway.feed import Feed, Item
from strandline.gateway.history import LEAST_BYTES, MOST_BYTES, History
from strandline.gateway.limits import Limits, Turns
from strandline.gateway.metrics import Counts
from strandline.gateway.session import SLOW, SLOW_REASON, Behind, Refused, Replay, Session
from strandline.wire.envelope import replayed
from strandline.wire.resume_token import Position

AT_ONCE = 1000
NO_BOUND = 1 << 60
WRITE_BYTES = 256 << 10
# A client may have been served by a process that was ahead of this one; for longer it cannot have been.
AHEAD_S = 30.0


class Replaying:
    """One replay of one session. Whatever is awaited, the session may have changed its mind meanwhile."""

    def __init__(
        self,
        session: Session,
        replay: Replay,
        *,
        history: History,
        limits: Limits,
        cold: Turns,
        counts: Counts,
    ) -> None:
        self._session = session
        self._replay = replay
        self._history = history
        self._limits = limits
        self._cold = cold
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
            while self._session.behind:
                feed, place = next(iter(self._session.behind.items()))
                if place.since is None:
                    await self._begin(feed, place)
                elif place.position.offset > feed.end:
                    await self._await_feed(feed, place)
                elif self._replay.credit <= 0 or self._loop.time() > self._page_ends:
                    await self._end_page()
                else:
                    await self._step(feed, place)
        except Refused as error:
            self._fail(error.code, str(error), error.retry_after)
        except KafkaError as error:
            self._fail("unavailable", f"Kafka does not answer: {error}", self._limits.page_s)
        except TimeoutError:
            self._session.close(SLOW, SLOW_REASON)
        else:
            self._counts.replays_done += 1
            self._counts.replay_s += self._loop.time() - begin
            if not self._is_told:
                self._answer("completed", f"Replayed {self._replay.sent} missed messages", {})

    async def _begin(self, feed: Feed, place: Behind) -> None:
        gaps: Sequence[Gap] = ()
        if place.time is None:
            offset, gaps = await self._history.begin(feed, place.position)
        else:
            offset = max(feed.horizon, await self._history.since(feed, place.time))
        if self._session.behind.get(feed) is not place:
            return
        if offset < feed.recent.first and not self._replay.is_paid:
            self._pay()
        self._session.tell_gaps(feed, gaps)
        place.since = offset
        self._reach(feed, place, offset)

    def _pay(self) -> None:
        name = f"{self._session.identity.subject}/{self._replay.client_id}"
        wait = self._cold.take(name, self._loop.time())
        if wait:
            raise Refused("replay_limited", f"one replay in {self._limits.cold_every_s:g} s", round(wait, 3))
        self._replay.is_paid = True

    async def _await_feed(self, feed: Feed, place: Behind) -> None:
        with self._session.ahead():
            async with asyncio.timeout(AHEAD_S):
                while self._session.behind.get(feed) is place and place.position.offset > feed.end:
                    self._replay.more.clear()
                    await self._replay.more.wait()
        if self._session.behind.get(feed) is place:
            self._reach(feed, place, place.position.offset)

    async def _step(self, feed: Feed, place: Behind) -> None:
        offset = place.position.offset
        if offset >= feed.recent.first:
            items, reached = feed.since(offset, AT_ONCE)
        else:
            chunk = await self._history.read(feed, offset, self._read_bytes)
            # Little for who wants a page, much for who wants all.
            self._read_bytes = min(2 * self._read_bytes, MOST_BYTES)
            if self._session.behind.get(feed) is not place:
                return
            items, reached = chunk.since(offset), chunk.end
        stop = feed.end if place.barrier is None else place.barrier
        reached = self._send(feed, items, min(reached, stop))
        self._reach(feed, place, reached)
        async with asyncio.timeout(self._limits.drain_s):
            await self._session.drained()

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
                self._session.tell_gaps(feed, [item])
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
        behind = self._session.behind
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
        missing = []
        for feed, place in list(behind.items()):
            stop = feed.end if place.barrier is None else place.barrier
            if place.position.offset < stop:
                missing.append(
                    {
                        "topic": feed.partition.topic,
                        "partition": feed.partition.number,
                        "from": place.position.offset,
                        "to": stop - 1,
                    }
                )
            place.since = stop
            self._reach(feed, place, stop)
        # What is left came after it was live already.
        self._replay.credit, self._page_ends, self._is_told = NO_BOUND, math.inf, True
        text = f"Replayed {self._replay.sent} missed messages; resume from 'next' for the rest"
        self._answer("partial", text, {"next": following, "missing": missing})

    def _answer(self, status: str, message: str, more: dict[str, Any]) -> None:
        told = {"status": status, "messages_replayed": self._replay.sent, "message": message}
        self._session.tell({"type": self._replay.answer, **told, **more})

    def _fail(self, code: str, message: str, retry_after: float | None) -> None:
        self._counts.replays_failed += 1
        kind = "reconnect_error" if self._replay.answer == "reconnect_ack" else "error"
        self._session.tell({"type": kind, "code": code, "message": message, "retry_after": retry_after})
