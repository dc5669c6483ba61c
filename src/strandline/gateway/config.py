"""The configuration of the gateway: what may stand in its file, and the settings that it comes to."""

import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jwt
import msgspec
from msgspec import Meta

from strandline.config import Secret, Section
from strandline.core.audience import Wanted
from strandline.core.channel import Template
from strandline.errors import OptionError
from strandline.gateway.auth import Door
from strandline.gateway.feed import Naming
from strandline.gateway.limits import Limits
from strandline.wire.resume_token import Signer

SHORTEST_KEY = 32

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Size = Annotated[int, Meta(ge=1024, le=1 << 34)]


class TopicSection(Section, frozen=True, kw_only=True):
    """How the records of a topic are named."""

    channel: str = "{key}"
    type: str = "message"
    priority: str = "NORMAL"


class TlsSection(Section, frozen=True, kw_only=True):
    """PEM files."""

    certificate: str
    key: str


class JwtSection(Section, frozen=True, kw_only=True):
    """Which tokens are taken."""

    algorithms: list[Literal["HS256", "RS256", "ES256"]]
    secret: Secret | None = None
    """For HS256."""
    jwks: str | None = None
    """A file of public keys, for RS256 and ES256."""
    audience: str | None = None
    issuer: str | None = None
    channels_claim: str = "channels"


class AuthSection(Section, frozen=True, kw_only=True):
    """Who is let in."""

    anonymous: bool = False
    jwt: JwtSection | None = None


class LimitsSection(Section, frozen=True, kw_only=True):
    """Bounds; see docs/gateway.md."""

    connections: Count = 20_000
    connections_per_address: Count = 10_000
    subscriptions: Count = 1_000
    message_bytes: Size = 64 << 10
    messages_per_s: Count = 100
    queue_bytes: Size = 1 << 20
    page: Count = 100
    page_s: Seconds = 5.0
    cold_every_s: Seconds = 10.0


class GatewayConfig(Section, frozen=True, kw_only=True):
    """The file."""

    topics: Annotated[dict[str, TopicSection], Meta(min_length=1)]
    listen: str = "127.0.0.1:8090"
    kafka: str | None = None
    kafka_config: str | None = None
    auth: AuthSection = AuthSection()
    tls: TlsSection | None = None
    origins: list[str] | None = None
    conflate: list[str] = msgspec.field(default_factory=list)
    """Channels whose slow clients get the latest record only."""
    recent_bytes: Size = 16 << 20
    """Kept in memory of each partition."""
    history_bytes: Size = 64 << 20
    """Kept of what was read from Kafka for replays, for the next who wants it."""
    max_history_s: Annotated[float, Meta(gt=0)] | None = None
    """How old records may be that are given out; all that Kafka has where it is missing."""
    token_keys: dict[str, Secret] = msgspec.field(default_factory=dict)
    """What resume tokens are signed with, by name; the first signs."""
    token_every_s: Seconds = 10.0
    token_valid_s: Seconds = 86_400.0
    observe: str | None = None
    limits: LimitsSection = LimitsSection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the gateway has to know."""

    listen: tuple[str, int]
    kafka: Mapping[str, str]
    namings: Mapping[str, Naming]
    door: Door
    signer: Signer
    limits: Limits
    tls: ssl.SSLContext | None = None
    origins: list[Any] | None = None
    conflate: Wanted
    recent_bytes: int = 16 << 20
    history_bytes: int = 64 << 20
    max_history_s: float | None = None
    token_every_s: float = 10.0
    token_valid_s: float = 86_400.0


def settings_of(config: GatewayConfig, kafka: Mapping[str, str], listen: tuple[str, int], folder: Path) -> Settings:
    """The settings of a configuration; what cannot be is refused here, before anything starts."""
    return Settings(
        listen=listen,
        kafka=kafka,
        namings={topic: _naming(topic, section) for topic, section in config.topics.items()},
        door=_door(config.auth, folder),
        signer=Signer(_token_keys(config.token_keys)),
        limits=Limits(**msgspec.structs.asdict(config.limits)),
        tls=None if config.tls is None else _tls(config.tls, folder),
        origins=config.origins,
        conflate=Wanted(config.conflate),
        recent_bytes=config.recent_bytes,
        history_bytes=config.history_bytes,
        max_history_s=config.max_history_s,
        token_every_s=config.token_every_s,
        token_valid_s=config.token_valid_s,
    )


def _naming(topic: str, section: TopicSection) -> Naming:
    found = {}
    for name in ("channel", "type", "priority"):
        try:
            found[name] = Template.parse(getattr(section, name))
        except ValueError as error:
            raise OptionError(f"topics.{topic}.{name}: {error}") from None
    return Naming(**found)


def _token_keys(given: Mapping[str, Secret]) -> dict[str, bytes]:
    short = next((name for name, key in given.items() if len(key.reveal()) < SHORTEST_KEY), None)
    if short is not None:
        raise OptionError(f"token_keys.{short} is shorter than {SHORTEST_KEY} characters")
    # Without keys of the user's, tokens are good for as long as this process lives.
    return {name: key.reveal().encode() for name, key in given.items()} or {"own": secrets.token_bytes(32)}


def _door(auth: AuthSection, folder: Path) -> Door:
    if auth.jwt is None:
        if not auth.anonymous:
            raise OptionError("nobody is let in: give auth.jwt, or auth.anonymous: true")
        return Door(lets_anonymous_in=True)
    section = auth.jwt
    keys: list[tuple[str | None, Any]] = []
    if section.secret is not None:
        if len(section.secret.reveal()) < SHORTEST_KEY:
            raise OptionError(f"auth.jwt.secret is shorter than {SHORTEST_KEY} characters")
        keys.append((None, section.secret.reveal()))
    if section.jwks is not None:
        keys += _jwks(folder / section.jwks)
    if not keys:
        raise OptionError("auth.jwt has neither a secret nor a file of keys (jwks)")
    if section.secret is not None and len(section.algorithms) > 1:
        # A public key would be taken for the secret of a token that says HS256.
        raise OptionError("auth.jwt: HS256 goes with a secret alone, RS256 and ES256 with keys")
    return Door(
        keys=tuple(keys),
        algorithms=tuple(section.algorithms),
        audience=section.audience,
        issuer=section.issuer,
        channels_claim=section.channels_claim,
        lets_anonymous_in=auth.anonymous,
    )


def _jwks(path: Path) -> list[tuple[str | None, Any]]:
    try:
        found = jwt.PyJWKSet.from_json(path.read_text())
    except (OSError, ValueError, jwt.PyJWTError) as error:
        raise OptionError(f"auth.jwt.jwks: {os.fspath(path)} cannot be used: {error}") from None
    return [(key.key_id, key.key) for key in found.keys]


def _tls(section: TlsSection, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(folder / section.certificate, folder / section.key)
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"tls: the certificate or its key cannot be used: {error}") from None
    return context
