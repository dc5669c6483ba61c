"""Kills, freezes and stops members of a replay at random moments for as long as told, and checks what must hold.

`python -m bench.soak_replay [MINUTES]`, 5 unless told otherwise.
"""

import asyncio
import random
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from tests.replay.members import Member, assert_all_came_in_order, steady
from tests.replay.support import Server, committed, serving, until

from strandline.stack import Stack
from strandline.stack.kafka import KafkaCluster

CONNECTIONS, REQUESTS, PARTITIONS = 24, 200, 6
EVERY_MS = 150
LONGEST_FREEZE_S = 12.0
"""Twice the time after which the group puts a member out."""


class Trial:
    """One capture, replayed by three members that are not left in peace."""

    def __init__(self, kafka: KafkaCluster, topic: str, server: Server, directory: Path, chance: random.Random) -> None:
        self._kafka, self._topic, self._server, self._directory = kafka, topic, server, directory
        self._chance = chance
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
        members = [await self._member() for _ in range(3)]
        while await self._look() < CONNECTIONS * (REQUESTS + 1):
            await asyncio.sleep(self._chance.uniform(0.5, 4))
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
                        chosen.process.send_signal(signal.SIGSTOP)
                        await asyncio.sleep(self._chance.uniform(0.5, LONGEST_FREEZE_S))
                        chosen.process.send_signal(signal.SIGCONT)
            if chosen.process.returncode is not None:
                members[place] = await self._member()
        for member in members:
            if member.process.returncode is None:
                await stop(member)
        await until(lambda: not self._server.open, "no connection is left open")
        assert_all_came_in_order(self._server.arrivals, CONNECTIONS, REQUESTS)
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


async def soak(minutes: float, kafka: KafkaCluster, directory: Path) -> tuple[int, int, int]:
    """How often members were disturbed, how many requests were captured, and how many were sent again."""
    chance = random.Random(5)
    deadline = time.monotonic() + minutes * 60
    disturbed, captured, repeated = 0, 0, 0
    while time.monotonic() < deadline:
        topic = f"soak-{captured}"
        steady(kafka, topic, connections=CONNECTIONS, requests=REQUESTS, every=EVERY_MS, partitions=PARTITIONS)
        async with serving() as server:
            trial = Trial(kafka, topic, server, directory, chance)
            await trial.run()
            disturbed += trial.disturbances
            captured += CONNECTIONS * REQUESTS
            repeated += len(server.arrivals) - CONNECTIONS * REQUESTS
        print(f"disturbed {disturbed} times, {captured} requests arrived, {repeated} of them again", flush=True)
    return disturbed, captured, repeated


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="strandline-soak-") as place, Stack(["kafka"]) as stack:
        given = float(sys.argv[1]) if len(sys.argv) > 1 else 5
        disturbances, requests, repeats = asyncio.run(soak(given, stack.kafka[0], Path(place)))
    print("soak.disturbances", disturbances)
    print("soak.requests", requests)
    print("soak.repeats", repeats)
