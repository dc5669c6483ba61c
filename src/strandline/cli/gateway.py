"""`strandline gateway`: Kafka topics over WebSocket; `strandline gateway verify`: a proof that one loses nothing."""

import asyncio
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import App, Parameter
from prometheus_client import CollectorRegistry

from strandline import config as configuration
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import on_stop_request, once
from strandline.config import parse_address
from strandline.errors import OptionError, StrandlineError
from strandline.gateway.config import GatewayConfig, Settings, settings_of
from strandline.gateway.metrics import Metrics
from strandline.gateway.server import Gateway
from strandline.gateway.verify import Trial
from strandline.gateway.verify import verify as run_trial
from strandline.observe import Observed

SHOWN = 20

app = App(name="gateway")


@app.default
def gateway(*, config: Path) -> None:
    """Serve Kafka topics to WebSocket clients.

    Parameters
    ----------
    config
        The file that says what, where and to whom: see docs/gateway.md.
    """
    read = configuration.load(config, GatewayConfig)
    file = None if read.kafka_config is None else config.parent / read.kafka_config
    kafka = kafka_settings(os.environ, file, (), read.kafka, None)
    settings = settings_of(read, kafka, parse_address(read.listen, "listen"), config.parent)
    pages = None if read.observe is None else parse_address(read.observe, "observe")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, pages))


@app.command
def verify(
    *,
    url: str,
    topic: str,
    kafka: str | None = None,
    kafka_config: Path | None = None,
    clients: int = 200,
    seconds: float = 30.0,
    rate: int = 500,
    deletes: Annotated[bool, Parameter(negative="")] = False,
    seed: int = 0,
) -> None:
    """Write numbered records, have many clients drop, freeze and come back meanwhile, and check what each of them saw.

    Ends with 0 when every client saw every record of its channels once, in order, or an exact gap for it.

    Parameters
    ----------
    url
        The gateway: ws://HOST:PORT.
    topic
        A topic that it serves with the key as the channel, to be written to. Nobody else may write to it meanwhile.
    kafka
        The brokers behind it, host:port with commas between.
    kafka_config
        A file with more settings of Kafka by librdkafka's names.
    clients
        How many.
    seconds
        How long records are written.
    rate
        Records a second.
    deletes
        Delete old records of the topic now and then, so that there are gaps to tell.
    seed
        Another seed tries another course.
    """
    if clients < 1 or rate < 1 or seconds <= 0:
        raise OptionError("--clients, --rate and --seconds take more than 0")
    settings = kafka_settings(os.environ, kafka_config, (), kafka, None)
    trial = Trial(
        url=url, kafka=settings, topic=topic, clients=clients, seconds=seconds, rate=rate, deletes=deletes, seed=seed
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run_trial(trial))
    print(
        f"{outcome.written:,} records written, {outcome.seen:,} seen by {clients:,} clients on {outcome.connects:,} "
        f"connections, {outcome.gaps:,} gaps told, {len(outcome.faults):,} faults"
    )
    for fault in outcome.faults[:SHOWN]:
        print(f"  {fault}")
    if outcome.faults:
        raise StrandlineError(f"{url} did not keep its word: {len(outcome.faults):,} faults")


async def _serve(settings: Settings, pages: tuple[str, int] | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(stop.set))):
        gateway = Gateway(settings)
        registry = CollectorRegistry()
        registry.register(Metrics(gateway))
        observed = nullcontext() if pages is None else Observed(*pages, registry, gateway.not_ready)
        with observed:
            if isinstance(observed, Observed):
                print(f"strandline: {observed.address}/metrics", file=sys.stderr, flush=True)
            async with gateway:
                brokers = settings.kafka["bootstrap.servers"]
                print(f"serving {', '.join(settings.namings)} of {brokers} on {gateway.address}", flush=True)
                await gateway.wait(stop)
    print(f"strandline: {gateway.hub.delivered:,} messages delivered", file=sys.stderr, flush=True)
