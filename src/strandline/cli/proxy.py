"""`strandline proxy`: several Kafka clusters that look like one to any Kafka client."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop
from cyclopts import App
from prometheus_client import CollectorRegistry

from strandline import config as configuration
from strandline.cli.signals import on_stop_request, once
from strandline.config import parse_address
from strandline.errors import StrandlineError
from strandline.observe import Observed
from strandline.proxy.config import ProxyConfig, settings_of
from strandline.proxy.metrics import Metrics
from strandline.proxy.process import allow_files, leave_alone_what_stays
from strandline.proxy.server import Proxy, Settings
from strandline.proxy.supervisor import Supervisor

app = App(name="proxy")


@app.default
def proxy(*, config: Path) -> None:
    """Serve several Kafka clusters as one.

    Parameters
    ----------
    config
        The file that says which, where, and whose each topic, group and transactional id is: see docs/proxy.md.
    """
    text = configuration.read_bounded(config)
    read = configuration.parse(config, text, ProxyConfig)
    with configuration.about(config):
        settings = settings_of(read, config.parent)
        pages = None if read.observe is None else parse_address(read.observe, "observe")
    served = _serve(settings, pages, config) if read.workers == 1 else _serve_by_many(settings, text, pages, config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(served)


async def _serve(settings: Settings, pages: tuple[str, int] | None, file: Path) -> None:
    allow_files(settings.most_connections)
    proxy = Proxy(settings)

    async def reload(new: Settings, _: bytes) -> list[str]:
        await proxy.reload(new)
        return []

    with _requests() as (stop, asked), _observed(pages, proxy):
        async with proxy:
            leave_alone_what_stays()
            _tell(proxy, settings)
            reloading = asyncio.create_task(_reload_on_signal(asked, reload, file))
            await stop.wait()
            reloading.cancel()
            _tell_the_end(proxy)


async def _serve_by_many(settings: Settings, text: bytes, pages: tuple[str, int] | None, file: Path) -> None:
    """The same, by several processes."""
    supervisor = Supervisor(settings, text, file)
    with _requests() as (stop, asked), _observed(pages, supervisor):
        async with supervisor:
            _tell(supervisor, settings)
            reloading = asyncio.create_task(_reload_on_signal(asked, supervisor.reload, file))
            await supervisor.wait(stop)
            reloading.cancel()
            _tell_the_end(supervisor)


@contextmanager
def _requests() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Set when this process is to stop, and when it is to read its file again.

    From the start: a SIGHUP that comes while the clusters are asked who they are is no request to stop.
    """
    loop, stop, reload = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(stop.set))):
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        yield stop, reload


@contextmanager
def _observed(pages: tuple[str, int] | None, served: Proxy | Supervisor) -> Iterator[None]:
    if pages is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(Metrics(served.state))
    with Observed(*pages, registry, served.not_ready, setting="observe in the file") as observed:
        _say(f"{observed.address}/metrics")
        yield


def _tell(served: Proxy | Supervisor, settings: Settings) -> None:
    state = served.state()
    for name, cluster in state.clusters.items():
        how = f"{cluster.brokers} broker(s)" if cluster.is_up else "does not answer yet"
        _say(f"cluster {name} at {cluster.address}: {how}")
    by = "" if state.workers == 1 else f" by {state.workers} processes"
    print(f"serving {', '.join(state.clusters)} as one on {settings.address}{by}", flush=True)


def _tell_the_end(served: Proxy | Supervisor) -> None:
    _say(f"stopping; {served.state().connections} connection(s) to drain")


async def _reload_on_signal(
    asked: asyncio.Event, reload: Callable[[Settings, bytes], Awaitable[list[str]]], file: Path
) -> None:
    """Read the file again whenever that is asked for; one that cannot be used changes nothing."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            text = configuration.read_bounded(file)
            with configuration.about(file):
                settings = settings_of(configuration.parse(file, text, ProxyConfig), file.parent)
            late = await reload(settings, text)
        except StrandlineError as error:
            _say(f"not reloaded, all stays as it was: {error}")
        else:
            for problem in late:
                _say(problem)
            _say(f"reloaded; serving {', '.join(settings.clusters)} as one")


def _say(line: str) -> None:
    print(f"strandline: {line}", file=sys.stderr, flush=True)
