"""`strandline capture`: HTTP traffic on its way to a service, recorded in Kafka."""

import asyncio
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import uvloop
from cyclopts import Parameter
from prometheus_client import CollectorRegistry

from strandline import config as configuration
from strandline.capture.config import (
    CaptureConfig,
    FrontTls,
    Settings,
    UpstreamTls,
    files_of,
    settings_of,
)
from strandline.capture.metrics import Metrics
from strandline.capture.proxy import Proxy
from strandline.cli.settings import kafka_settings
from strandline.cli.signals import on_stop_request, once
from strandline.config import parse_address
from strandline.counts import counted
from strandline.errors import OptionError, StrandlineError
from strandline.observe import Observed


def capture(
    *,
    listen: str | None = None,
    to: str | None = None,
    kafka: str | None = None,
    topic: str | None = None,
    partitions: int | None = None,
    node_id: str | None = None,
    reliable: Literal["mutating", "all", "none"] | None = None,
    release_after: float | None = None,
    sample: float | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    upstream_ca: str | None = None,
    observe: str | None = None,
    config: Path | None = None,
    kafka_config: Path | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = (),
) -> None:
    """Pass HTTP/1.1 traffic on, byte for byte, and record it in Kafka.

    Parameters
    ----------
    listen
        Where clients connect: HOST:PORT.
    to
        Where their bytes go: http://HOST:PORT, or https://HOST:PORT.
    kafka
        The brokers, host:port with commas between. Without it STRANDLINE_KAFKA from the environment, else
        127.0.0.1:9092.
    topic
        Where the records go: logging-traffic-topic unless told otherwise; made when it is not there.
    partitions
        How many partitions the topic gets when it is made; as many as the broker gives unless told otherwise.
    node_id
        The name of this proxy in the records; the machine's unless told otherwise.
    reliable
        Which requests reach the upstream only once Kafka has them: mutating (POST, PUT, PATCH, DELETE; the default),
        all, or none.
    release_after
        After so many seconds (10) they go on without word from Kafka.
    sample
        Which part of the connections is recorded, 0 to 1.
    tls_certificate
        TLS towards the clients: a PEM file.
    tls_key
        And its key.
    upstream_ca
        Which authority an https upstream is believed by: a PEM file. The system's unless told otherwise.
    observe
        Serve /metrics, /healthz and /readyz here: HOST:PORT.
    config
        A YAML file with all of this and more, redaction too; options go over it.
    kafka_config
        A file with more settings of Kafka by librdkafka's names, a line name=value each. The place for passwords.
    settings
        One more setting, name=value, over those of the file; may be repeated.
    """
    read = CaptureConfig() if config is None else files_of(configuration.load(config, CaptureConfig), config.parent)
    given = {
        "listen": listen,
        "to": to,
        "kafka": kafka,
        "kafka_config": None if kafka_config is None else str(kafka_config),
        "topic": topic,
        "partitions": partitions,
        "node_id": node_id,
        "reliable": reliable,
        "release_after_s": release_after,
        "sample": sample,
        "observe": observe,
        "tls": _tls(tls_certificate, tls_key),
        "upstream_tls": None if upstream_ca is None else UpstreamTls(ca=upstream_ca),
    }
    whole = msgspec.structs.replace(read, **{name: value for name, value in given.items() if value is not None})
    if not 0 <= whole.sample <= 1:
        raise OptionError("--sample takes 0 to 1")
    if whole.partitions is not None and not 1 <= whole.partitions <= 10_000:
        raise OptionError("--partitions takes 1 to 10000")
    if not 0 < whole.release_after_s <= 86_400:
        raise OptionError("--release-after takes seconds, more than 0")
    file = None if whole.kafka_config is None else Path(whole.kafka_config)
    checked = settings_of(whole, kafka_settings(os.environ, file, settings, whole.kafka, None))
    pages = None if whole.observe is None else parse_address(whole.observe, "--observe")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(checked, str(whole.to), pages))


def _tls(certificate: str | None, key: str | None) -> FrontTls | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise OptionError("--tls-certificate and --tls-key belong together")
    return FrontTls(certificate=certificate, key=key)


async def _run(settings: Settings, to: str, pages: tuple[str, int] | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    with on_stop_request(once(lambda: loop.call_soon_threadsafe(stop.set))):
        proxy = Proxy(settings)
        registry = CollectorRegistry()
        registry.register(Metrics(proxy.counts, proxy.publisher))
        observed = (
            nullcontext()
            if pages is None
            else Observed(*pages, registry, lambda: _not_ready(proxy), setting="--observe, or observe in the file")
        )
        with observed:
            if isinstance(observed, Observed):
                print(f"strandline: {observed.address}/metrics", file=sys.stderr, flush=True)
            async with proxy:
                brokers = settings.kafka["bootstrap.servers"]
                print(f"capturing {proxy.address} -> {to} into {settings.topic} on {brokers}", flush=True)
                await stop.wait()
    print(f"strandline: {_summary(proxy)}", file=sys.stderr, flush=True)
    if proxy.publisher.dropped or proxy.publisher.failed:
        raise StrandlineError(f"the capture is not whole: not all records are in {settings.topic}; see what was logged")


def _not_ready(proxy: Proxy) -> list[str]:
    # Not whether Kafka is there: traffic passes without it, and whoever asks would take the service away.
    return [] if proxy.is_accepting else ["takes no connections"]


def _summary(proxy: Proxy) -> str:
    counts, publisher = proxy.counts, proxy.publisher
    lost = f"; {counted(publisher.dropped, 'record')} dropped, {publisher.failed:,} failed"
    late = f"; {counted(counts.timed_out, 'request')} went on without word from Kafka" if counts.timed_out else ""
    return (
        f"{counted(counts.requests, 'request')} on {counted(counts.connections, 'connection')}, "
        f"{counted(publisher.published, 'record')} written"
        f"{lost if publisher.dropped or publisher.failed else ''}{late}"
    )
