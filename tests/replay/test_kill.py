"""A member that is killed at any moment: nothing is lost, and what repeats is what was not committed."""

import asyncio
import random
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

from strandline.stack.kafka import KafkaCluster
from tests.replay.members import Member, assert_all_came_in_order, place, steady
from tests.replay.support import Server, committed, serving, until

CONNECTIONS, REQUESTS, PARTITIONS = 12, 80, 2
# So that the group need not wait for the session of the one that was killed to run out.
STATIC = ("--set", "group.instance.id=one")


def test_killed_again_and_again_every_request_arrives_in_order_and_only_what_was_not_committed_repeats(
    kafka: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    steady(kafka, topic, connections=CONNECTIONS, requests=REQUESTS, every=100, partitions=PARTITIONS)
    chance = random.Random(7)

    async def main() -> None:
        async with serving() as server:
            marks = [[0] * PARTITIONS]
            lives = [0]
            for _ in range(3):
                one = await Member(kafka, topic, server, "one", tmp_path).start(*STATIC)
                wanted = lives[-1] + chance.randrange(20, 150)
                await until(lambda wanted=wanted: len(server.arrivals) >= wanted, "some arrive")  # type: ignore[misc]
                await one.end(signal.SIGKILL)
                await until(lambda: not server.open, "its connections are gone")
                lives.append(len(server.arrivals))
                marks.append([max(0, mark) for mark in committed(kafka.address, topic, PARTITIONS)])
            last = await Member(kafka, topic, server, "one", tmp_path).start(*STATIC, "--speedup", "max")
            assert await last.end() == 0, last.log
            check(server, lives, marks)
        ends = committed(kafka.address, topic, PARTITIONS)
        assert sum(ends) == CONNECTIONS * (REQUESTS + 1)

    asyncio.run(main())


def check(server: Server, lives: list[int], marks: list[list[int]]) -> None:
    assert_all_came_in_order(server.arrivals, CONNECTIONS, REQUESTS)
    for before, after in pairwise(marks):
        assert all(was <= now for was, now in zip(before, after, strict=True)), "a commit went back"
    for begin, end, mark in zip(lives, [*lives[1:], len(server.arrivals)], marks, strict=True):
        life = server.arrivals[begin:end]
        # Nothing that was committed comes again, and nothing twice in one life.
        assert all(offset >= mark[partition] for partition, offset in map(place, life))
        assert max(Counter(arrival.mark for arrival in life).values(), default=0) <= 1
