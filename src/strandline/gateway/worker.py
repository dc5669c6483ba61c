"""One of several processes of a gateway: serves what its supervisor tells it to."""

from pathlib import Path

from strandline import config as configuration
from strandline.gateway.commons import Commons
from strandline.gateway.config import GatewayConfig, Settings, settings_of
from strandline.gateway.messages import Start, ToWorker, to_worker
from strandline.gateway.server import Gateway
from strandline.workers.post import Post, work


async def serve(post: Post[ToWorker], start: ToWorker) -> None:
    """Serve until the end."""
    if not isinstance(start, Start):
        raise TypeError(f"a worker is told first what to serve, not {type(start).__name__}")
    settings = _settings(start)
    commons = Commons(post.send, settings.limits.cold_wait_s)
    post.hear(commons.heard)
    async with Gateway(settings, commons) as gateway:
        post.serve()
        await gateway.wait(post.stop)
    post.send(gateway.state())


def _settings(start: Start) -> Settings:
    file = Path(start.file)
    config = configuration.parse(file, start.config, GatewayConfig)
    own_key = bytes.fromhex(start.own_key)
    return settings_of(config, start.kafka, (start.host, start.port), file.parent, own_key=own_key)


if __name__ == "__main__":
    work(serve, to_worker.decode)
