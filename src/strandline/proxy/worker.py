"""One of several processes of a proxy: serves what its supervisor tells it to."""

import asyncio
import zlib
from pathlib import Path

from strandline import config as configuration
from strandline.proxy.config import ProxyConfig, settings_of
from strandline.proxy.messages import MOST_KNOWN, Known, Reload, Reloaded, Start, ToWorker, to_worker
from strandline.proxy.process import allow_files, leave_alone_what_stays
from strandline.proxy.server import Proxy, Settings
from strandline.workers.post import Post, work

TELL_S = 0.25
TELL_TOPICS_S = 1.0


async def serve(post: Post[ToWorker], start: ToWorker) -> None:
    """Serve until the end."""
    if not isinstance(start, Start):
        raise TypeError(f"a worker is told first what to serve, not {type(start).__name__}")
    orders: asyncio.Queue[ToWorker] = asyncio.Queue()
    post.hear(orders.put_nowait)
    file = Path(start.file)
    settings = _settings(file, start.config)
    allow_files(settings.most_connections)
    proxy = Proxy(settings, shares_ports=True)
    for name, topics in start.known.items():
        if name in proxy.clusters:
            proxy.clusters[name].recall(zlib.decompress(topics))
    telling = asyncio.create_task(_tell(post, proxy))
    told: dict[str, bytes] = {}
    try:
        async with proxy:
            leave_alone_what_stays()
            await _tell_topics(post, proxy, told)
            post.send(proxy.state())
            post.serve()
            knowing = asyncio.create_task(_keep_telling_topics(post, proxy, told))
            try:
                await _until_the_end(post, asyncio.create_task(_reload(post, proxy, file, orders)))
            finally:
                knowing.cancel()
    finally:
        telling.cancel()
    post.send(proxy.state())


async def _until_the_end(post: Post[ToWorker], reloading: "asyncio.Task[None]") -> None:
    stopping = asyncio.create_task(post.stop.wait())
    done, _ = await asyncio.wait([stopping, reloading], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, reloading):
        task.cancel()
    if reloading in done:
        reloading.result()


async def _tell(post: Post[ToWorker], proxy: Proxy) -> None:
    """Say every moment how this process is, also while it ends."""
    while True:
        await asyncio.sleep(TELL_S)
        post.send(proxy.state())


async def _keep_telling_topics(post: Post[ToWorker], proxy: Proxy, told: dict[str, bytes]) -> None:
    while True:
        await asyncio.sleep(TELL_TOPICS_S)
        await _tell_topics(post, proxy, told)


async def _tell_topics(post: Post[ToWorker], proxy: Proxy, told: dict[str, bytes]) -> None:
    """Say what clusters have told of their topics since the last time, for who may come after this one."""
    for name, cluster in list(proxy.clusters.items()):
        if cluster.told and told.get(name) is not cluster.told:
            told[name] = cluster.told
            packed = await asyncio.to_thread(zlib.compress, told[name], 1)
            if len(packed) <= MOST_KNOWN:
                post.send(Known(name, packed))


async def _reload(post: Post[ToWorker], proxy: Proxy, file: Path, orders: "asyncio.Queue[ToWorker]") -> None:
    while True:
        order = await orders.get()
        if isinstance(order, Reload):
            await proxy.reload(_settings(file, order.config))
            post.send(Reloaded(order.number))


def _settings(file: Path, text: bytes) -> Settings:
    return settings_of(configuration.parse(file, text, ProxyConfig), file.parent)


if __name__ == "__main__":
    work(serve, to_worker.decode)
