"""A member of a group in a process of its own, to be frozen. It finishes three records, and all when it wakes up."""

import asyncio
import json
import sys

from strandline.clock import AwakeClock
from strandline.kafka.events import Assigned, Lost, Records, Taken
from strandline.kafka.group import GroupMember
from strandline.units import Nanos

STALLED = Nanos(3_000_000_000)


def say(**fact: object) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


async def main(address: str, topic: str) -> None:
    settings = {"bootstrap.servers": address, "group.id": topic, "session.timeout.ms": 6000}
    member = GroupMember(settings, [topic])
    await member.start()
    held: list[Taken] = []
    believed: set[int] = set()

    async def watch() -> None:
        while member.stalled_for(AwakeClock().monotonic()) < STALLED:
            await asyncio.sleep(0.01)
        for record in held:
            member.done(record.claim)
        generations = list(believed)
        say(proved=await member.prove(), of=generations)

    watching = asyncio.create_task(watch())
    while not (watching.done() and watching.exception()):
        event = await member.next()
        if isinstance(event, Records) and event.records[0].generation == 1:
            held += event.records
            for record in held[:3]:
                member.done(record.claim)
            say(took=len(held), proved=await member.prove())
        elif isinstance(event, Lost):
            believed.clear()
            say(lost=[partition.number for partition in event.partitions])
        elif isinstance(event, Assigned):
            believed.add(event.generation)
            say(assigned=[partition.number for partition in event.partitions])


asyncio.run(main(*sys.argv[1:]))
