"""The configuration of the proxy: what may stand in its file, and the settings that it comes to."""

import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from strandline.config import Secret, Section
from strandline.core.address import EVERYWHERE, is_served_by
from strandline.core.routes import Routes
from strandline.core.virtual_nodes import BLOCK, Blocks
from strandline.errors import OptionError
from strandline.kafka.cluster import host_and_port
from strandline.kafka.security import Security
from strandline.proxy.cluster import DEFAULTS, Limits
from strandline.proxy.door import Door
from strandline.proxy.filters import load_filters
from strandline.proxy.server import Settings
from strandline.tls import serving

Port = Annotated[int, Meta(ge=1, le=65535)]
Name = Annotated[str, Meta(min_length=1, max_length=100)]
LAST_PORT = 65535
Allowed = Literal["acls", "quotas", "scram", "quorum"]


class TlsSection(Section, frozen=True, kw_only=True):
    """PEM files of the proxy itself."""

    certificate: str
    key: str


class ListenSection(Section, frozen=True, kw_only=True):
    """Where clients find the proxy."""

    host: str = "127.0.0.1"
    bootstrap_port: Port = 9092
    first_broker_port: Port = 9100
    ports: Annotated[int, Meta(ge=1, le=10_000)] = 100
    """For each cluster: a broker has port number id mod this."""
    advertised_host: str | None = None
    tls: TlsSection | None = None


class ClusterTlsSection(Section, frozen=True, kw_only=True):
    """How a cluster's certificate is checked, and ours."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


class SaslSection(Section, frozen=True, kw_only=True):
    """Who we are to a cluster."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str
    password: Secret


class TimeoutsSection(Section, frozen=True, kw_only=True):
    """How long a cluster is waited for, in seconds."""

    connect_s: Annotated[float, Meta(gt=0, le=300)] = DEFAULTS.connect_s
    request_s: Annotated[float, Meta(gt=0, le=900)] = DEFAULTS.request_s
    answer_s: Annotated[float, Meta(gt=0, le=3600)] = DEFAULTS.answer_s
    health_s: Annotated[float, Meta(gt=0, le=300)] = DEFAULTS.health_s


class BreakerSection(Section, frozen=True, kw_only=True):
    """When a cluster is taken for down, and how long nobody waits for it then."""

    failures: Annotated[int, Meta(ge=1, le=1000)] = DEFAULTS.failures
    pause_s: Annotated[float, Meta(gt=0, le=600)] = DEFAULTS.pause_s


class ClusterSection(Section, frozen=True, kw_only=True):
    """A cluster."""

    bootstrap: Name
    primary: bool = False
    block: Annotated[int, Meta(ge=0)] | None = None
    """Which block of node ids is its own; its place in the file where it is missing."""
    tls: ClusterTlsSection | None = None
    sasl: SaslSection | None = None
    timeouts: TimeoutsSection | None = None
    """Its own, in place of those for all."""
    breaker: BreakerSection | None = None


class RouteSection(Section, frozen=True, kw_only=True):
    """A pattern and whose it is."""

    match: Name
    cluster: Name


class RenameSection(Section, frozen=True, kw_only=True):
    """How a cluster's topics are called outside."""

    prefix: Name


class RoutesSection(Section, frozen=True, kw_only=True):
    """The first that matches decides; what none matches is the primary cluster's."""

    topics: list[RouteSection] = msgspec.field(default_factory=list)
    groups: list[RouteSection] = msgspec.field(default_factory=list)
    transactional_ids: list[RouteSection] = msgspec.field(default_factory=list)
    topic_names: dict[str, RenameSection] = msgspec.field(default_factory=dict)


class AuthSection(Section, frozen=True, kw_only=True):
    """Who may use the proxy."""

    users: Annotated[dict[str, Secret], Meta(min_length=1)]
    mechanisms: list[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]] = msgspec.field(
        default_factory=lambda: ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    )


class ProxyConfig(Section, frozen=True, kw_only=True):
    """The file."""

    clusters: Annotated[dict[Name, ClusterSection], Meta(min_length=1)]
    listen: ListenSection = ListenSection()
    routes: RoutesSection = RoutesSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    breaker: BreakerSection = BreakerSection()
    auth: AuthSection | None = None
    allow: list[Allowed] | dict[Allowed, Name] = msgspec.field(default_factory=list)
    """APIs that one cluster answers: the primary one, or those that are named."""
    filters: list[str] = msgspec.field(default_factory=list)
    block_width: Annotated[int, Meta(ge=1000, le=1_000_000_000)] = BLOCK
    """How many node ids each cluster has: more than the largest id of a broker."""
    drain_s: Annotated[float, Meta(ge=0, le=600)] = 10.0
    idle_s: Annotated[float, Meta(gt=0, le=86_400)] = 600.0
    """A connection over which nothing goes for so long is closed."""
    connections: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    """Of each process."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes on the same ports."""
    offsets_last_days: Annotated[int, Meta(ge=0, le=36_500)] = 365
    """How long offsets away from a group's home are kept; 0 leaves it to the owner."""
    observe: str | None = None


def settings_of(config: ProxyConfig, folder: Path) -> Settings:
    """The settings of a configuration; what cannot be is refused here, before anything starts."""
    routes = _routes(config)
    numbers = {
        name: place if cluster.block is None else cluster.block
        for place, (name, cluster) in enumerate(config.clusters.items())
    }
    listen = config.listen
    first_ports = {name: listen.first_broker_port + number * listen.ports for name, number in numbers.items()}
    for name, first in first_ports.items():
        if first + listen.ports - 1 > LAST_PORT:
            problem = f"cluster {name} would have ports up to {first + listen.ports - 1}"
            raise OptionError(f"{problem}: lower listen.first_broker_port, listen.ports or its block")
        if first <= listen.bootstrap_port < first + listen.ports:
            problem = f"listen.bootstrap_port {listen.bootstrap_port} is among the ports of cluster {name}"
            raise OptionError(f"{problem} ({first} to {first + listen.ports - 1})")
    return Settings(
        host=listen.host,
        bootstrap_port=listen.bootstrap_port,
        first_ports=first_ports,
        ports=listen.ports,
        advertised_host=listen.advertised_host or listen.host,
        clusters={name: _kafka(name, cluster, listen, folder) for name, cluster in config.clusters.items()},
        limits={name: _limits(config, cluster) for name, cluster in config.clusters.items()},
        blocks=Blocks(numbers, config.block_width),
        routes=routes,
        allowed=_allowed(config, routes.primary),
        tls=None
        if listen.tls is None
        else serving(folder / listen.tls.certificate, folder / listen.tls.key, "listen.tls"),
        door=None if config.auth is None else _door(config.auth),
        filters=load_filters(config.filters),
        drain_s=config.drain_s,
        offsets_last=timedelta(days=config.offsets_last_days),
        most_connections=config.connections,
        idle_s=config.idle_s,
        workers=config.workers,
    )


def _routes(config: ProxyConfig) -> Routes:
    names = list(config.clusters)
    primaries = [name for name, cluster in config.clusters.items() if cluster.primary]
    if len(primaries) > 1:
        raise OptionError(f"clusters {' and '.join(primaries)} are both primary; one is")
    given = config.routes
    for kind in ("topics", "groups", "transactional_ids"):
        for route in getattr(given, kind):
            if route.cluster not in config.clusters:
                raise OptionError(f"routes.{kind}: cluster '{route.cluster}' is none of {', '.join(names)}")
    for name in given.topic_names:
        if name not in config.clusters:
            raise OptionError(f"routes.topic_names: cluster '{name}' is none of {', '.join(names)}")
    return Routes(
        primary=(primaries or names)[0],
        topics=[(route.match, route.cluster) for route in given.topics],
        groups=[(route.match, route.cluster) for route in given.groups],
        transactional_ids=[(route.match, route.cluster) for route in given.transactional_ids],
        prefixes={name: rename.prefix for name, rename in given.topic_names.items()},
    )


def _door(auth: AuthSection) -> Door:
    for name, password in auth.users.items():
        # By PLAIN anybody could sign in as this user, and SCRAM proves nothing.
        if not password.reveal():
            raise OptionError(f"auth.users.{name}: the password is empty")
    return Door(auth.users, tuple(auth.mechanisms))


def _allowed(config: ProxyConfig, primary: str) -> dict[str, str]:
    if not isinstance(config.allow, dict):
        return dict.fromkeys(config.allow, primary)
    for word, name in config.allow.items():
        if name not in config.clusters:
            raise OptionError(f"allow.{word}: cluster '{name}' is none of {', '.join(config.clusters)}")
    return {str(word): name for word, name in config.allow.items()}


def _limits(config: ProxyConfig, cluster: ClusterSection) -> Limits:
    given = (cluster.timeouts or config.timeouts, cluster.breaker or config.breaker)
    return Limits(**{name: value for section in given for name, value in msgspec.structs.asdict(section).items()})


def _kafka(name: str, cluster: ClusterSection, listen: ListenSection, folder: Path) -> Mapping[str, str]:
    """A cluster's settings by librdkafka's names; files and addresses that cannot be used are refused."""
    tls, sasl = cluster.tls, cluster.sasl
    protocol = ("sasl_" if sasl else "") + ("ssl" if tls else "plaintext")
    settings = {"bootstrap.servers": cluster.bootstrap, "security.protocol": protocol}
    if tls is not None:
        files = {"ssl.ca.location": tls.ca, "ssl.certificate.location": tls.certificate, "ssl.key.location": tls.key}
        settings |= {option: str(folder / file) for option, file in files.items() if file is not None}
    if sasl is not None:
        settings |= {
            "sasl.mechanism": sasl.mechanism,
            "sasl.username": sasl.username,
            "sasl.password": sasl.password.reveal(),
        }
    Security.parse(settings)
    if "@" in cluster.bootstrap:
        # Not repeated in the message: the password may stand there.
        where = f"clusters.{name}"
        raise OptionError(f"{where}.bootstrap: an address has no user and no password; name them in {where}.sasl")
    for place in cluster.bootstrap.split(","):
        try:
            host, port = host_and_port(place)
        except OptionError:
            raise OptionError(f"clusters.{name}.bootstrap: '{place.strip()}' is not host:port") from None
        if port == listen.bootstrap_port and _is_own(host, listen):
            raise OptionError(f"clusters.{name}.bootstrap: {host}:{port} is where the proxy itself listens")
    return settings


def _is_own(host: str, listen: ListenSection) -> bool:
    if listen.host in EVERYWHERE and host == socket.gethostname():
        return True
    return is_served_by(host, listen.host) or is_served_by(host, listen.advertised_host or listen.host)
