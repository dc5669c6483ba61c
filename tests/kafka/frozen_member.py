"""A member of a group in a process of its own, to be frozen. It finishes three records, and all when it is told to."""

import asyncio
import json
import sys
from datetime import timedelta

from strandline.clock import AwakeClock
from strandline.kafka.events import Assigned, Lost, Records, Taken
from strandline.kafka.group import GroupMember
from strandline.units import Nanos
from tests.support import TIMEOUT

STALLED = Nanos(3_000_000_000)
LONG = timedelta(seconds=TIMEOUT)


def say(**fact: object) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


async def main(address: str, topic: str) -> None:
    session = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
    settings: dict[str, object] = {"bootstrap.servers": address, "group.id": topic, **session}
    member = GroupMember(settings, [topic])
    await member.start()
    held: list[Taken] = []
    believed: set[int] = set()

    async def finish() -> None:
        # Written while this process is frozen: it is the first thing that it reads when it wakes up.
        await asyncio.to_thread(sys.stdin.readline)
        stalled = member.stalled_for(AwakeClock().monotonic()) >= STALLED
        for record in held:
            member.done(record.claim)
        generations = list(believed)
        say(stalled=stalled, proved=await member.prove(LONG), of=generations)

    finishing = asyncio.create_task(finish())
    while not (finishing.done() and finishing.exception()):
        event = await member.next()
        if isinstance(event, Records) and event.records[0].generation == 1:
            held += event.records
            for record in held[:3]:
                member.done(record.claim)
            say(took=len(held), proved=await member.prove(LONG))
        elif isinstance(event, Lost):
            believed.clear()
            say(lost=[partition.number for partition in event.partitions])
        elif isinstance(event, Assigned):
            believed.add(event.generation)
            say(assigned=[partition.number for partition in event.partitions])


asyncio.run(main(*sys.argv[1:]))
