"""Kills, freezes and stops members of a replay at random moments for 5 minutes, and checks what must hold.

`python -m bench.soak_replay`, with `--minutes 60` for longer and `--quick` for a smoke run.
"""

import asyncio
import random
import signal
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.replay.members import Member, assert_all_came_in_order, steady
from tests.replay.support import Server, committed, serving, until

from bench.amounts import parse
from bench.figures import Figure, report
from strandline.stack import Stack
from strandline.stack.kafka import KafkaCluster

PARTITIONS = 6


@dataclass(frozen=True)
class Amounts:
    """How long it goes on, and what is replayed each time."""

    minutes: float = 5.0
    connections: int = 24
    requests: int = 200
    """Of each connection."""
    every_ms: int = 150
    """Between two requests of a connection."""
    longest_pause_s: float = 4.0
    """Between two disturbances."""
    longest_freeze_s: float = 12.0
    """Twice the time after which the group puts a member out."""


QUICK = Amounts(minutes=0.01, connections=6, requests=40, every_ms=100, longest_pause_s=1.0, longest_freeze_s=1.0)


class Trial:
    """One capture, replayed by three members that are not left in peace."""

    def __init__(
        self,
        kafka: KafkaCluster,
        topic: str,
        server: Server,
        directory: Path,
        *,
        amounts: Amounts,
        chance: random.Random,
    ) -> None:
        self._kafka, self._topic, self._server, self._directory = kafka, topic, server, directory
        self._amounts, self._chance = amounts, chance
        self._lives = 0
        self.disturbances = 0
        self.marks: list[list[int]] = []

    async def _member(self) -> Member:
        self._lives += 1
        return await Member(self._kafka, self._topic, self._server, f"m{self._lives}", self._directory).start()

    async def _look(self) -> int:
        found = await asyncio.to_thread(committed, self._kafka.address, self._topic, PARTITIONS)
        self.marks.append([max(0, mark) for mark in found])
        return sum(self.marks[-1])

    async def run(self) -> None:
        amounts = self._amounts
        members = [await self._member() for _ in range(3)]
        while await self._look() < amounts.connections * (amounts.requests + 1):
            await asyncio.sleep(self._chance.uniform(0.5, amounts.longest_pause_s))
            place = self._chance.randrange(len(members))
            chosen = members[place]
            if chosen.process.returncode is None:
                self.disturbances += 1
                match self._chance.randrange(3):
                    case 0:
                        await chosen.end(signal.SIGKILL)
                    case 1:
                        await stop(chosen)
                    case _:
                        chosen.send(signal.SIGSTOP)
                        await asyncio.sleep(self._chance.uniform(0.5, amounts.longest_freeze_s))
                        chosen.send(signal.SIGCONT)
            if chosen.process.returncode is not None:
                members[place] = await self._member()
        for member in members:
            if member.process.returncode is None:
                await stop(member)
        await until(lambda: not self._server.open, "no connection is left open")
        assert_all_came_in_order(self._server.arrivals, amounts.connections, amounts.requests)
        for before, after in pairwise(self.marks):
            check(all(was <= now for was, now in zip(before, after, strict=True)), f"a commit went back: {self.marks}")


def check(holds: bool, told: str) -> None:
    if not holds:
        raise AssertionError(told)


async def stop(member: Member) -> None:
    """Ask a member to end. One that has only just begun may know of no signals, or of nothing to end."""
    code = await member.end(signal.SIGTERM)
    has_only_begun = code == -signal.SIGTERM or (code == 1 and member.log == "strandline: interrupted\n")
    check(code == 0 or has_only_begun, f"exit code {code}: {member.log}")


async def soak(amounts: Amounts, kafka: KafkaCluster, directory: Path) -> tuple[int, int, int]:
    """How often members were disturbed, how many requests were captured, and how many were sent again."""
    chance = random.Random(5)
    deadline = time.monotonic() + amounts.minutes * 60
    each = amounts.connections * amounts.requests
    disturbed, captured, repeated = 0, 0, 0
    while time.monotonic() < deadline:
        topic = f"soak-{captured}"
        steady(
            kafka,
            topic,
            connections=amounts.connections,
            requests=amounts.requests,
            every=amounts.every_ms,
            partitions=PARTITIONS,
        )
        async with serving() as server:
            trial = Trial(kafka, topic, server, directory, amounts=amounts, chance=chance)
            await trial.run()
            disturbed += trial.disturbances
            captured += each
            repeated += len(server.arrivals) - each
        print(f"disturbed {disturbed} times, {captured} requests arrived, {repeated} of them again", flush=True)
    return disturbed, captured, repeated


if __name__ == "__main__":
    chosen, is_quick = parse("bench.soak_replay", Amounts(), QUICK)
    with tempfile.TemporaryDirectory(prefix="strandline-soak-") as place, Stack(["kafka"]) as stack:
        disturbances, requests, repeats = asyncio.run(soak(chosen, stack.kafka[0], Path(place)))
    what = "how often a member was killed, stopped or frozen"
    report(
        f"A replay whose members are disturbed for {chosen.minutes:g} minutes",
        [
            Figure("soak.disturbances", disturbances, what, floor=1, is_exact=True),
            Figure("soak.requests", requests, "requests that all came, in order", floor=1, is_exact=True),
            Figure("soak.repeats", repeats, "of them again"),
        ],
        is_quick=is_quick,
    )
