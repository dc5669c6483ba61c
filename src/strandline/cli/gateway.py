"""`strandline gateway`: Kafka topics over WebSocket; `strandline gateway verify`: a proof that one loses nothing."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import uvloop
from cyclopts import App, Parameter
from prometheus_client import CollectorRegistry

from strandline import config as configuration
from strandline.cli.line import ProgressLine
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import on_stop_request, once
from strandline.clock import SystemClock
from strandline.config import Secret, parse_address
from strandline.counts import counted
from strandline.errors import OptionError, StrandlineError
from strandline.gateway.address import shown
from strandline.gateway.config import GatewayConfig, Settings, settings_of
from strandline.gateway.messages import Start, State
from strandline.gateway.metrics import Metrics
from strandline.gateway.server import Gateway
from strandline.gateway.supervisor import Supervisor
from strandline.gateway.verify import Outcome, Trial
from strandline.gateway.verify import verify as run_trial
from strandline.observe import NotReady, Observed

SHOWN = 20
PATIENCE_S = 3.0

app = App(name="gateway")


@app.default
def gateway(*, config: Path) -> None:
    """Serve Kafka topics to WebSocket clients.

    Parameters
    ----------
    config
        The file that says what, where and to whom: see docs/gateway.md.
    """
    text = configuration.read_bounded(config)
    read = configuration.parse(config, text, GatewayConfig)
    file = None if read.kafka_config is None else config.parent / read.kafka_config
    kafka = kafka_settings(os.environ, file, (), read.kafka, None)
    own_key = secrets.token_bytes(32)
    with configuration.about(config):
        listen = parse_address(read.listen, "listen")
        settings = settings_of(read, kafka, listen, config.parent, own_key=own_key)
        pages = None if read.observe is None else parse_address(read.observe, "observe")
    if read.workers > 1:
        start = Start(0, text, os.fspath(config.resolve()), kafka, *listen, own_key.hex())
        served = _serve_by_many(settings, start, read.workers, pages)
    else:
        served = _serve(settings, pages)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            delivered = runner.run(served)
        except asyncio.CancelledError:
            raise StrandlineError("stopped before it served anything") from None
    print(f"strandline: {counted(delivered, 'message')} delivered", file=sys.stderr, flush=True)


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
    recreates: int = 0,
    seed: int | None = None,
    token_file: Path | None = None,
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
    recreates
        How often the topic is deleted and made anew meanwhile. All that it had is gone then.
    seed
        The same seed tries the same course again; a new one is drawn, and printed, where it is missing.
    token_file
        A file with a token that the gateway lets in and that allows the channels verify.*, where it asks for one.
    """
    if clients < 1 or rate < 1 or seconds <= 0:
        raise OptionError("--clients, --rate and --seconds take more than 0")
    if recreates < 0:
        raise OptionError("--recreates takes no less than 0")
    name = shown(url, "--url")
    chosen = secrets.randbelow(1 << 32) if seed is None else seed
    settings = kafka_settings(os.environ, kafka_config, (), kafka, None)
    trial = Trial(
        url=url,
        kafka=settings,
        topic=topic,
        clients=clients,
        seconds=seconds,
        rate=rate,
        deletes=deletes,
        recreates=recreates,
        seed=chosen,
        token=None if token_file is None else Secret(_token_in(token_file)),
    )
    print(f"strandline: a trial with --seed {chosen}", file=sys.stderr, flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            outcome = runner.run(_tried(trial))
        except asyncio.CancelledError:
            raise StrandlineError("stopped before the end of the trial, so nothing is proven") from None
    print(f"{_stand(trial, outcome)}, {counted(len(outcome.faults), 'fault')}")
    for fault in outcome.faults[:SHOWN]:
        print(f"  {fault}")
    if outcome.faults:
        raise StrandlineError(f"{name} did not keep its word: {counted(len(outcome.faults), 'fault')}")


def _token_in(file: Path) -> str:
    try:
        token = configuration.read_bounded(file).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or len(token.split()) > 1:
        raise OptionError(f"--token-file {file} holds no token")
    return token


async def _tried(trial: Trial) -> Outcome:
    """Run a trial, and tell how it goes; a request to stop ends it."""
    loop, trying, line = asyncio.get_running_loop(), asyncio.current_task(), ProgressLine(SystemClock())

    def stop() -> None:
        if trying is not None:
            loop.call_soon_threadsafe(trying.cancel)

    with on_stop_request(once(stop)):
        try:
            return await run_trial(trial, tell=lambda outcome: line.show(lambda: _stand(trial, outcome)))
        finally:
            line.clear()


def _stand(trial: Trial, outcome: Outcome) -> str:
    return (
        f"{counted(outcome.written, 'record')} written, {outcome.seen:,} seen by {counted(trial.clients, 'client')} on "
        f"{counted(outcome.connects, 'connection')}, {counted(outcome.gaps, 'gap')} told"
    )


async def _serve(settings: Settings, pages: tuple[str, int] | None) -> int:
    """Serve until asked to stop; how much was delivered."""
    gateway = Gateway(settings)
    async with _serving(settings, gateway, lambda: (gateway.state(), 1), pages) as stop:
        _tell(settings, gateway.address)
        await gateway.wait(stop)
    return gateway.hub.delivered


async def _serve_by_many(settings: Settings, start: Start, workers: int, pages: tuple[str, int] | None) -> int:
    """The same, by several processes."""
    supervisor = Supervisor(start, settings.limits, workers)
    async with _serving(settings, supervisor, supervisor.state, pages) as stop:
        _tell(settings, settings.address(supervisor.port))
        await supervisor.wait(stop)
    return supervisor.state()[0].counts.delivered


@asynccontextmanager
async def _serving(
    settings: Settings,
    server: Gateway | Supervisor,
    state: Callable[[], tuple[State, int]],
    pages: tuple[str, int] | None,
) -> AsyncIterator[asyncio.Event]:
    """From when it serves until it has ended; a request to stop ends it also while it still waits for Kafka."""
    loop, stop, starting = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    is_serving = False

    def end() -> None:
        stop.set()
        if not is_serving and starting is not None:
            starting.cancel()

    waiting = _say_what_is_waited_for(settings)
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(end))), _observed(pages, state, server.not_ready):
        async with server:
            is_serving = True
            waiting.cancel()
            yield stop


@contextmanager
def _observed(
    pages: tuple[str, int] | None, state: Callable[[], tuple[State, int]], not_ready: NotReady
) -> Iterator[None]:
    if pages is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(Metrics(state))
    with Observed(*pages, registry, not_ready, setting="observe in the file") as observed:
        print(f"strandline: {observed.address}/metrics", file=sys.stderr, flush=True)
        yield


def _say_what_is_waited_for(settings: Settings) -> asyncio.TimerHandle:
    """Tell a user who has waited for a moment what for; to be cancelled when it is there."""
    line = f"strandline: waiting for Kafka at {settings.kafka['bootstrap.servers']} ..."
    return asyncio.get_running_loop().call_later(PATIENCE_S, partial(print, line, file=sys.stderr, flush=True))


def _tell(settings: Settings, address: str) -> None:
    print(f"serving {', '.join(settings.namings)} of {settings.kafka['bootstrap.servers']} on {address}", flush=True)
