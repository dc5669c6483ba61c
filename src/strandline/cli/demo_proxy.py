"""`strandline demo proxy`: two clusters as one, a group that reads both, one of them killed, and nothing lost."""

import asyncio
import signal
from pathlib import Path
from threading import Event
from typing import Any

import uvloop
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cli.signals import on_stop_request, once
from strandline.demo.two_clusters import Clerk, Readers
from strandline.errors import OptionError, StrandlineError
from strandline.kafka.librdkafka import asking
from strandline.kafka.topics import wait_until_led
from strandline.proxy.config import ClusterSection, ListenSection, ProxyConfig, RouteSection, RoutesSection, settings_of
from strandline.proxy.server import Proxy
from strandline.stack import Stack
from strandline.stack.kafka import KafkaCluster
from strandline.stack.ports import different_ports, free_port
from strandline.stalls import StallDetector

EAST, WEST = "orders", "eu.orders"
PORTS = 2
LONGEST_S = 3600.0
CREATE_WITHIN_S = 60.0
MEMBERS = 2
READ_SILENCE_S = 120.0
TELL_EVERY_S = 2.0
POLL_S = 0.2


def proxy(*, seconds: float = 20.0) -> None:
    """Show two Kafka clusters as one.

    Parameters
    ----------
    seconds
        How long orders are written.
    """
    if not 0 < seconds <= LONGEST_S:
        raise OptionError(f"--seconds takes more than 0, and {LONGEST_S:g} at most")
    stack = Stack(["kafka"], kafka_clusters=2)
    say("Starting two real Kafka clusters ...")
    with on_stop_request(stack.cancelled.set), stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_show(stack, seconds))


async def _show(stack: Stack, seconds: float) -> None:
    east, west = stack.kafka
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    bootstrap, first = different_ports(2, free_port)
    config = ProxyConfig(
        listen=ListenSection(bootstrap_port=bootstrap, first_broker_port=first, ports=PORTS),
        clusters={"east": ClusterSection(bootstrap=east.address), "west": ClusterSection(bootstrap=west.address)},
        routes=RoutesSection(topics=[RouteSection(match="eu.*", cluster="west")]),
    )
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(stopped.set))):
        if stack.cancelled.is_set():  # asked for before anybody listened here
            raise StrandlineError("the demo was stopped")
        async with Proxy(settings_of(config, Path())) as served:
            say(f"east at {east.address}, west at {west.address}; clients know only {served.settings.address}")
            await asyncio.to_thread(_create_topics, served.settings.address)
            say(f"Orders are written to {EAST} (in the east) and {WEST} (in the west), and a group of two reads both.")
            await _trade(served.settings.address, west, seconds, stopped)


async def _trade(kafka: str, west: KafkaCluster, seconds: float, stopped: asyncio.Event) -> None:
    clerk, readers = Clerk(kafka, [EAST, WEST]), Readers(kafka, [EAST, WEST])
    no_more, is_over = Event(), Event()
    writing = asyncio.create_task(asyncio.to_thread(clerk.write, no_more, is_over))
    reading = [asyncio.create_task(asyncio.to_thread(readers.work, is_over)) for _ in range(MEMBERS)]
    stopping = asyncio.create_task(stopped.wait())
    until = [stopping, writing, *reading]
    try:
        await _tell(clerk, readers, seconds / 3, until)
        if not stopped.is_set():
            say("The west is killed (SIGKILL). The east goes on:")
            await asyncio.to_thread(west.brokers[0].stop, signal.SIGKILL, 0.0)
            await _tell(clerk, readers, seconds / 3, until)
            say("The west is started again:")
            west.brokers[0].start()
            await asyncio.to_thread(west.wait_ready)
            await _tell(clerk, readers, seconds / 3, until)
        no_more.set()
        await _caught_up(clerk, readers, writing, reading)
    finally:
        no_more.set()
        is_over.set()
        stopping.cancel()
        await asyncio.gather(*until, return_exceptions=True)
    _raise_failure(reading)
    written, read = clerk.acknowledged.total(), len(readers.read)
    twice = sum(count - 1 for count in readers.read.values())
    say(f"{written:,} orders acknowledged, {read:,} different ones read, {twice:,} read again after a rebalance.")
    if read < written:
        raise StrandlineError(f"{written - read:,} orders were acknowledged and not read")
    say("Nothing is lost.")


async def _caught_up(
    clerk: Clerk, readers: Readers, writing: asyncio.Task[None], reading: list[asyncio.Task[None]]
) -> None:
    """Wait until all that was written is acknowledged, and all that is acknowledged is read, or nothing moves."""
    await asyncio.wait([writing, *reading], return_when=asyncio.FIRST_COMPLETED)
    _raise_failure([writing, *reading])
    detector = StallDetector(READ_SILENCE_S, lambda: len(readers.read))
    while len(readers.read) < clerk.acknowledged.total() and detector.problem() is None:
        await asyncio.sleep(POLL_S)
        _raise_failure(reading)


async def _tell(clerk: Clerk, readers: Readers, seconds: float, until: list[asyncio.Task[Any]]) -> None:
    """Show how it goes for a while, or until one of these is done; raises where it has failed."""
    times = max(1, round(seconds / TELL_EVERY_S))
    for _ in range(times):
        done, _ = await asyncio.wait(until, timeout=seconds / times, return_when=asyncio.FIRST_COMPLETED)
        _raise_failure(until)
        if done:
            return
        counts = ", ".join(
            f"{topic}: {clerk.acknowledged[topic]:,} written, {readers.by_topic[topic]:,} read"
            for topic in (EAST, WEST)
        )
        say(f"  {counts}")


def _raise_failure(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def _create_topics(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    with asking(kafka):
        for made in admin.create_topics([NewTopic(EAST, 2, 1), NewTopic(WEST, 2, 1)]).values():
            made.result(CREATE_WITHIN_S)
        # A member of a group that joins before a topic is shown may look for it again only after minutes.
        wait_until_led(admin, [EAST, WEST], kafka, CREATE_WITHIN_S)


def say(line: str) -> None:
    """A line for the user."""
    print(line, flush=True)
