"""The configuration of the capture: what may stand in its file, and the settings that it comes to, checked whole."""

import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from strandline.capture.recorder import Reliable
from strandline.capture.redaction import Action, Redaction
from strandline.config import Secret, Section, parse_address
from strandline.core.address import is_served_by
from strandline.errors import OptionError
from strandline.kafka.starts import TOPIC_NAME
from strandline.tls import serving
from strandline.wire.redaction_mark import FRAMING
from strandline.wire.traffic import TOPIC

SHORTEST_KEY = 16
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
NODE = re.compile(r"[0-9A-Za-z._-]{1,128}")

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Actions = dict[str, Literal["hash", "remove"]]
Address = tuple[str, int]


class FrontTls(Section, frozen=True, kw_only=True):
    """TLS towards the clients: PEM files."""

    certificate: str
    key: str


class UpstreamTls(Section, frozen=True, kw_only=True):
    """TLS towards the upstream."""

    ca: str | None = None
    verify: bool = True


class RedactionSection(Section, frozen=True, kw_only=True):
    """What is not to leave the process as it came."""

    key: Secret | None = None
    headers: Actions = msgspec.field(default_factory=dict)
    query: Actions = msgspec.field(default_factory=dict)
    json: Actions = msgspec.field(default_factory=dict)
    max_body_bytes: Annotated[int, Meta(ge=1, le=64 << 20)] = 1 << 20
    pass_types: list[str] = msgspec.field(default_factory=list)


class CaptureConfig(Section, frozen=True, kw_only=True):
    """The file; options of the command go over it."""

    listen: str | None = None
    to: str | None = None
    kafka: str | None = None
    kafka_config: str | None = None
    topic: str = TOPIC
    partitions: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    node_id: str | None = None
    reliable: Literal["mutating", "all", "none"] = "mutating"
    release_after_s: Seconds = 10.0
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    buffer_bytes: Annotated[int, Meta(ge=1 << 20, le=1 << 34)] = 64 << 20
    idle_after_s: Seconds = 600.0
    connect_within_s: Seconds = 10.0
    stop_within_s: Seconds = 10.0
    observe: str | None = None
    tls: FrontTls | None = None
    upstream_tls: UpstreamTls | None = None
    redaction: RedactionSection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the proxy has to know."""

    listen: Address
    upstream: Address
    kafka: Mapping[str, str]
    topic: str = TOPIC
    partitions: int = -1
    node: str = "capture"
    reliable: Reliable = Reliable.MUTATING
    release_after_s: float = 10.0
    sample: float = 1.0
    buffer_bytes: int = 64 << 20
    idle_after_s: float = 600.0
    connect_within_s: float = 10.0
    stop_within_s: float = 10.0
    front_tls: ssl.SSLContext | None = None
    upstream_tls: ssl.SSLContext | None = None
    redaction: Redaction | None = None


def settings_of(config: CaptureConfig, kafka: Mapping[str, str]) -> Settings:
    """The settings of a configuration; what cannot be is refused here, before anything starts."""
    if config.listen is None:
        raise OptionError("nowhere to listen: --listen 127.0.0.1:8080")
    if config.to is None:
        raise OptionError("no upstream: --to http://127.0.0.1:9000")
    listen, (secure, upstream) = parse_address(config.listen, "--listen"), parse_target(config.to)
    if upstream[1] == listen[1] and is_served_by(upstream[0], listen[0]):
        raise OptionError("--to is where the capture itself listens: it would send every request to itself, for ever")
    if config.upstream_tls is not None and not secure:
        raise OptionError("upstream_tls is of no use: the upstream is not https://")
    node = config.node_id if config.node_id is not None else re.sub(r"[^0-9A-Za-z._-]", "-", socket.gethostname())[:128]
    if NODE.fullmatch(node) is None:
        raise OptionError("--node-id takes letters, digits, dots, dashes and underscores, at most 128")
    if TOPIC_NAME.fullmatch(config.topic) is None:
        raise OptionError(f"'{config.topic}' is not the name of a topic")
    return Settings(
        listen=listen,
        upstream=upstream,
        kafka=kafka,
        topic=config.topic,
        partitions=-1 if config.partitions is None else config.partitions,
        node=node,
        reliable=Reliable(config.reliable),
        release_after_s=config.release_after_s,
        sample=config.sample,
        buffer_bytes=config.buffer_bytes,
        idle_after_s=config.idle_after_s,
        connect_within_s=config.connect_within_s,
        stop_within_s=config.stop_within_s,
        front_tls=None if config.tls is None else _front_tls(config.tls),
        upstream_tls=_upstream_tls(config.upstream_tls or UpstreamTls()) if secure else None,
        redaction=None if config.redaction is None else _redaction(config.redaction),
    )


def parse_target(text: str) -> tuple[bool, Address]:
    """Whether the upstream is to be had by TLS, and where it is."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    if url.scheme not in {"http", "https"} or not url.hostname or url.path not in {"", "/"}:
        # Not quoted: a URL may hold a password.
        raise OptionError("--to takes http://HOST:PORT or https://HOST:PORT, without a path; bytes pass unchanged")
    if url.query or url.fragment or url.username is not None:
        raise OptionError("--to takes a host and a port only; bytes pass unchanged")
    if port == 0:
        raise OptionError("--to takes a port from 1 to 65535")
    secure = url.scheme == "https"
    return secure, (url.hostname, port if port is not None else 443 if secure else 80)


def _front_tls(tls: FrontTls) -> ssl.SSLContext:
    context = serving(Path(tls.certificate), Path(tls.key), "tls")
    context.set_alpn_protocols(["http/1.1"])
    return context


def _upstream_tls(tls: UpstreamTls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ValueError) as error:
        raise OptionError(f"upstream_tls.ca: {tls.ca} cannot be used: {_reason(error)}") from None
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(error: Exception) -> str:
    """Without the path."""
    if isinstance(error, ssl.SSLError):
        return error.reason or "it is not PEM"
    return error.strerror or "it cannot be read" if isinstance(error, OSError) else str(error)


def _redaction(section: RedactionSection) -> Redaction:
    actions = [*section.headers.values(), *section.query.values(), *section.json.values()]
    if not actions:
        raise OptionError("redaction: names nothing; give headers, query or json, or leave it out")
    key = b"" if section.key is None else section.key.reveal().encode()
    if "hash" in actions and len(key) < SHORTEST_KEY:
        raise OptionError(f"redaction.key: a hash needs a key of {SHORTEST_KEY} characters or more")
    for name in section.headers:
        if NAME.fullmatch(name) is None:
            raise OptionError(f"redaction.headers: '{name}' is not the name of a header")
        if name.lower().encode() in FRAMING:
            raise OptionError(f"redaction.headers: without '{name}' nobody could tell where a message ends")
    for path in section.json:
        if not all(path.split(".")):
            raise OptionError(f"redaction.json: '{path}' is not names with dots between")
    return Redaction(
        headers={name: Action(action) for name, action in section.headers.items()},
        query={name: Action(action) for name, action in section.query.items()},
        json={path: Action(action) for path, action in section.json.items()},
        key=key,
        max_body=section.max_body_bytes,
        pass_types=frozenset(kind.strip().lower() for kind in section.pass_types),
    )


def files_of(config: CaptureConfig, beside: Path) -> CaptureConfig:
    """The configuration with its files' names taken from the directory of the configuration file."""
    tls, upstream = config.tls, config.upstream_tls
    if tls is not None:
        tls = FrontTls(certificate=str(beside / tls.certificate), key=str(beside / tls.key))
    if upstream is not None and upstream.ca is not None:
        upstream = msgspec.structs.replace(upstream, ca=str(beside / upstream.ca))
    kafka = config.kafka_config
    return msgspec.structs.replace(
        config, tls=tls, upstream_tls=upstream, kafka_config=None if kafka is None else str(beside / kafka)
    )
