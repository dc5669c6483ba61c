"""`strandline demo gateway`: prices tick in a browser, the network is cut, and nothing is missing afterwards."""

import asyncio
import contextlib
import random
import socket
from pathlib import Path

import uvloop
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from strandline.cli.signals import on_stop_request, once
from strandline.demo.network import Network
from strandline.demo.prices import Market, trade
from strandline.demo.prices_page import page
from strandline.demo.serving import LOOPBACK
from strandline.errors import OptionError, StrandlineError
from strandline.gateway.config import AuthSection, GatewayConfig, TopicSection, settings_of
from strandline.gateway.server import Gateway
from strandline.kafka.librdkafka import asking
from strandline.kafka.topics import wait_until_led
from strandline.stack import Stack

TOPIC = "prices"
PARTITIONS = 3
LONGEST_S = 86_400.0
CREATE_WITHIN_S = 30.0
TOKEN_EVERY_S = 2.0


def gateway(*, seconds: float | None = None, seed: int = 1) -> None:
    """Show prices that tick in a browser, with a button that cuts the network.

    Parameters
    ----------
    seconds
        End by itself after so long. Without it, Ctrl-C does.
    seed
        Another number, other prices.
    """
    if seconds is not None and not 0 < seconds <= LONGEST_S:
        raise OptionError(f"--seconds takes more than 0, and {LONGEST_S:g} at most")
    stack = Stack(["kafka"])
    say("Starting a real Kafka broker ...")
    with on_stop_request(stack.cancelled.set), stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_show(stack, seconds, seed))


async def _show(stack: Stack, seconds: float | None, seed: int) -> None:
    kafka = stack.kafka[0].address
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    await asyncio.to_thread(_create_topic, kafka)
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(stop.set))), socket.create_server((LOOPBACK, 0)) as at:
        if stack.cancelled.is_set():  # asked for before anybody listened here
            raise StrandlineError("the demo was stopped")
        origin = f"http://{LOOPBACK}:{at.getsockname()[1]}"
        config = GatewayConfig(
            topics={TOPIC: TopicSection(type="price")},
            auth=AuthSection(anonymous=True),
            origins=[origin],
            token_every_s=TOKEN_EVERY_S,
        )
        settings = settings_of(config, {"bootstrap.servers": kafka}, (LOOPBACK, 0), Path())
        async with Gateway(settings) as served, Network(int(served.address.rpartition(":")[2])) as network:
            trading = asyncio.create_task(trade(kafka, TOPIC, Market(random.Random(seed))))  # noqa: S311
            trading.add_done_callback(lambda _: stop.set())
            try:
                async with page(at, network):
                    say(f"Prices tick on {origin}: open it in a browser, and cut the network there. Ctrl-C ends it.")
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await served.wait(stop)
            finally:
                trading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await trading
        say(f"{served.hub.delivered:,} messages delivered on {served.counts.connections:,} connections.")


def _create_topic(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    with asking(kafka):
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(CREATE_WITHIN_S)
        # The gateway refuses to start on a topic that the broker does not show yet.
        wait_until_led(admin, [TOPIC], kafka, CREATE_WITHIN_S)


def say(line: str) -> None:
    """A line for the user."""
    print(line, flush=True)
